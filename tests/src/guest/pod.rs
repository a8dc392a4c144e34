//! Pods as a test describes them, written as ordinary Kubernetes manifests.

use std::fmt::Write as _;

/// A pod with one container `main`. Resources are quantities as Kubernetes writes them.
#[derive(Clone, Debug, Default)]
pub struct Pod {
    /// `metadata.name`; the namespace is `default`.
    pub name: String,
    /// Requests, such as `("memory", "64Mi")`.
    pub requests: Vec<(&'static str, String)>,
    /// Limits.
    pub limits: Vec<(&'static str, String)>,
    /// `spec.priority`.
    pub priority: Option<i32>,
    /// `spec.priorityClassName`.
    pub priority_class: Option<&'static str>,
    /// `spec.terminationGracePeriodSeconds`.
    pub grace_s: Option<u32>,
    /// `metadata.annotations`.
    pub annotations: Vec<(&'static str, &'static str)>,
    /// emptyDir volumes of the container: name and `sizeLimit`.
    pub empty_dirs: Vec<(&'static str, Option<&'static str>)>,
}

impl Pod {
    /// No requests, no limits.
    #[must_use]
    pub fn best_effort(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..Self::default()
        }
    }

    /// A memory request and no limit.
    #[must_use]
    pub fn burstable(name: &str, memory_request: &str) -> Self {
        let requests = vec![
            ("cpu", "100m".to_owned()),
            ("memory", memory_request.to_owned()),
        ];
        Self {
            requests,
            ..Self::best_effort(name)
        }
    }

    /// Requests equal to limits.
    #[must_use]
    pub fn guaranteed(name: &str, cpu: &str, memory: &str) -> Self {
        let limits = vec![("cpu", cpu.to_owned()), ("memory", memory.to_owned())];
        Self {
            requests: limits.clone(),
            limits,
            ..Self::best_effort(name)
        }
    }

    /// With a limit.
    #[must_use]
    pub fn limit(mut self, resource: &'static str, quantity: &str) -> Self {
        self.limits.push((resource, quantity.to_owned()));
        self
    }

    /// With `spec.priority`.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = Some(priority);
        self
    }

    /// With the class and priority that make a pod critical (`system-node-critical`, never evicted for its usage).
    #[must_use]
    pub fn critical(mut self) -> Self {
        self.priority = Some(2_000_001_000);
        self.priority_class = Some("system-node-critical");
        self
    }

    /// With `spec.terminationGracePeriodSeconds`.
    #[must_use]
    pub fn grace_s(mut self, seconds: u32) -> Self {
        self.grace_s = Some(seconds);
        self
    }

    /// With an annotation.
    #[must_use]
    pub fn annotation(mut self, key: &'static str, value: &'static str) -> Self {
        self.annotations.push((key, value));
        self
    }

    /// With an emptyDir volume.
    #[must_use]
    pub fn empty_dir(mut self, name: &'static str, size_limit: Option<&'static str>) -> Self {
        self.empty_dirs.push((name, size_limit));
        self
    }

    /// The UID that a manifest without one gets.
    #[must_use]
    pub fn uid(&self) -> String {
        format!("default_{}", self.name)
    }

    /// The pod as the agent names it.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("default/{}", self.name)
    }

    /// `Guaranteed`, `Burstable` or `BestEffort`.
    #[must_use]
    pub fn qos(&self) -> &'static str {
        if self.requests.is_empty() && self.limits.is_empty() {
            "BestEffort"
        } else if self.requests == self.limits {
            "Guaranteed"
        } else {
            "Burstable"
        }
    }

    /// The pod's directory below the root of a hierarchy, by the kubelet's convention.
    #[must_use]
    pub fn cgroup(&self) -> String {
        let class = match self.qos() {
            "Guaranteed" => "",
            "Burstable" => "burstable/",
            _ => "besteffort/",
        };
        format!("kubepods/{class}pod{}", self.uid())
    }

    /// The manifest.
    #[must_use]
    pub fn manifest(&self) -> String {
        let mut text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {}\n",
            self.name,
        );
        let mut line = |line: String| {
            // Writing to a String cannot fail.
            let _always_ok = writeln!(text, "{line}");
        };
        if !self.annotations.is_empty() {
            line("  annotations:".to_owned());
        }
        for (key, value) in &self.annotations {
            line(format!("    {key}: {value}"));
        }
        line("spec:".to_owned());
        if let Some(priority) = self.priority {
            line(format!("  priority: {priority}"));
        }
        if let Some(class) = self.priority_class {
            line(format!("  priorityClassName: {class}"));
        }
        if let Some(seconds) = self.grace_s {
            line(format!("  terminationGracePeriodSeconds: {seconds}"));
        }
        line("  containers:\n  - name: main\n    image: none".to_owned());
        if self.qos() != "BestEffort" {
            line("    resources:".to_owned());
            for (heading, resources) in [("requests", &self.requests), ("limits", &self.limits)] {
                if !resources.is_empty() {
                    line(format!("      {heading}:"));
                }
                for (resource, quantity) in resources {
                    line(format!("        {resource}: {quantity}"));
                }
            }
        }
        if !self.empty_dirs.is_empty() {
            line("    volumeMounts:".to_owned());
            for (name, _) in &self.empty_dirs {
                line(format!("    - {{name: {name}, mountPath: /{name}}}"));
            }
            line("  volumes:".to_owned());
        }
        for (name, size_limit) in &self.empty_dirs {
            line(match size_limit {
                Some(limit) => {
                    format!("  - {{name: {name}, emptyDir: {{sizeLimit: {limit}}}}}")
                }
                None => format!("  - {{name: {name}, emptyDir: {{}}}}"),
            });
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_holds_what_was_asked_for() {
        let pod = Pod::burstable("leaky", "64Mi").priority(7).grace_s(2);
        assert_eq!(
            pod.manifest(),
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: leaky\nspec:\n  priority: 7\n  terminationGracePeriodSeconds: 2\n  \
             containers:\n  - name: main\n    image: none\n    resources:\n      requests:\n        cpu: 100m\n        memory: 64Mi\n"
        );
        assert_eq!(pod.cgroup(), "kubepods/burstable/poddefault_leaky");
        assert_eq!(
            Pod::guaranteed("g", "1", "1Gi").cgroup(),
            "kubepods/poddefault_g"
        );
        assert_eq!(
            Pod::best_effort("b").cgroup(),
            "kubepods/besteffort/poddefault_b"
        );
    }
}
