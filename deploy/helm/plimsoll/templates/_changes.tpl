{{- /* Each changes `object` in place and renders nothing. */ -}}

{{- define "plimsoll.role" -}}
{{- $values := .root.Values -}}
{{- $rules := .object.rules -}}
{{- if $values.budgets }}{{ $rules = append $rules (dict "apiGroups" (list "policy") "resources" (list "poddisruptionbudgets") "verbs" (list "list" "watch")) }}{{ end -}}
{{- if $values.deleteEvicted.enabled }}{{ $rules = append $rules (dict "apiGroups" (list "") "resources" (list "pods") "verbs" (list "delete")) }}{{ end -}}
{{- if $values.evictionAPI }}{{ $rules = append $rules (dict "apiGroups" (list "") "resources" (list "pods/eviction") "verbs" (list "create")) }}{{ end -}}
{{- if $values.nodeResourceTopology }}{{ $rules = append $rules (dict "apiGroups" (list "topology.node.k8s.io") "resources" (list "noderesourcetopologies") "verbs" (list "create" "patch")) }}{{ end -}}
{{- if $values.taintOnPressure }}{{ $rules = append $rules (dict "apiGroups" (list "") "resources" (list "nodes") "verbs" (list "patch")) }}{{ end -}}
{{- if $values.uninstall -}}
  {{- $rules = append $rules (dict "apiGroups" (list "") "resources" (list "nodes") "verbs" (list "patch")) -}}
  {{- $rules = append $rules (dict "apiGroups" (list "topology.node.k8s.io") "resources" (list "noderesourcetopologies") "verbs" (list "get" "delete")) -}}
{{- end -}}
{{- $_ := set .object "rules" $rules -}}
{{- end -}}

{{- /* This one renders: deploy/base/config.yaml, with the values. */ -}}
{{- define "plimsoll.config" -}}
{{- $head := dict "apiVersion" "kubelet.config.k8s.io/v1beta1" "kind" "KubeletConfiguration" -}}
{{- printf "%s\n" (toYaml (merge $head .Values.config)) -}}
{{- end -}}

{{- define "plimsoll.daemonset" -}}
{{- $values := .root.Values -}}
{{- $pod := .object.spec.template.spec -}}
{{- $agent := index $pod.containers 0 -}}
{{- $cluster := index $pod.containers 1 -}}
{{- range list $agent $cluster -}}
  {{- $_ := set . "image" (printf "%s:%s" $values.image.repository (default $.root.Chart.AppVersion $values.image.tag)) -}}
  {{- with $values.image.pullPolicy }}{{ $_ := set $cluster "imagePullPolicy" . }}{{ $_ := set $agent "imagePullPolicy" . }}{{ end -}}
{{- end -}}
{{- /* A changed configuration rolls the agents out, which read it when they start. */ -}}
{{- $annotations := dict "checksum/config" (include "plimsoll.config" .root | sha256sum) -}}
{{- $_ := set .object.spec.template.metadata "annotations" $annotations -}}
{{- with $values.imagePullSecrets }}{{ $_ := set $pod "imagePullSecrets" . }}{{ end -}}
{{- with $values.nodeSelector }}{{ $_ := set $pod "nodeSelector" (merge (deepCopy .) $pod.nodeSelector) }}{{ end -}}
{{- with $values.tolerations }}{{ $_ := set $pod "tolerations" . }}{{ end -}}
{{- with $values.resources.agent }}{{ $_ := set $agent "resources" . }}{{ end -}}
{{- with $values.resources.cluster }}{{ $_ := set $cluster "resources" . }}{{ end -}}
{{- if $values.leastPrivilege -}}
  {{- $component := fromYaml (.root.Files.Get "components/least-privilege/kustomization.yaml") -}}
  {{- $patch := index (fromYamlArray (index $component.patches 0).patch) 0 -}}
  {{- $_ := set $agent "securityContext" $patch.value -}}
{{- end -}}
{{- /* As components/before-1.30. */ -}}
{{- if semverCompare "<1.30.0-0" .root.Capabilities.KubeVersion.Version -}}
  {{- $_ := unset $agent.securityContext "appArmorProfile" -}}
  {{- $_ := set $annotations "container.apparmor.security.beta.kubernetes.io/agent" "unconfined" -}}
{{- end -}}
{{- if $values.withoutBpf -}}
  {{- $mounts := list -}}
  {{- range $agent.volumeMounts }}{{ if not (has .name (list "bpf" "security")) }}{{ $mounts = append $mounts . }}{{ end }}{{ end -}}
  {{- $_ := set $agent "volumeMounts" $mounts -}}
  {{- $volumes := list -}}
  {{- range $pod.volumes }}{{ if not (has .name (list "bpf" "security")) }}{{ $volumes = append $volumes . }}{{ end }}{{ end -}}
  {{- $_ := set $pod "volumes" $volumes -}}
{{- end -}}
{{- if $values.withoutPropagation -}}
  {{- range $agent.volumeMounts }}{{ if has .name (list "kubelet" "logs") }}{{ $_ := unset . "mountPropagation" }}{{ end }}{{ end -}}
{{- end -}}
{{- with $values.kubeletDir -}}
  {{- $directory := . -}}
  {{- range $agent.volumeMounts }}{{ if eq .name "kubelet" }}{{ $_ := set . "mountPath" $directory }}{{ end }}{{ end -}}
  {{- range $pod.volumes }}{{ if eq .name "kubelet" }}{{ $_ := set .hostPath "path" $directory }}{{ end }}{{ end -}}
{{- end -}}
{{- $args := $cluster.args -}}
{{- if $values.budgets }}{{ $args = append $args "--respect-disruption-budgets" }}{{ end -}}
{{- with $values.deleteEvicted }}{{ if .enabled }}{{ $args = append $args (printf "--evicted-pods=keepPerOwner=%d,keepFor=%s" (int .keepPerOwner) .keepFor) }}{{ end }}{{ end -}}
{{- if $values.evictionAPI }}{{ $args = append $args "--evict-by=EvictionAPI" }}{{ end -}}
{{- if $values.nodeResourceTopology }}{{ $args = append $args "--node-resource-topology" }}{{ end -}}
{{- if $values.taintOnPressure }}{{ $args = append $args "--taint-on-pressure" }}{{ end -}}
{{- if $values.uninstall }}{{ $args = append $args "--clean-up-on-exit" }}{{ end -}}
{{- $_ := set $cluster "args" (concat $args $values.extraArgs.cluster) -}}
{{- $args = $agent.args -}}
{{- if $values.uninstall -}}
  {{- $args = without $args "--keep-on-exit" -}}
  {{- $_ := set .object.spec.updateStrategy.rollingUpdate "maxUnavailable" "100%" -}}
{{- end -}}
{{- if $values.budgets }}{{ $args = append $args "--respect-disruption-budgets" }}{{ end -}}
{{- with $values.kubeletDir }}{{ $args = append $args (printf "--kubelet-dir=%s" .) }}{{ end -}}
{{- if $values.nodeResourceTopology }}{{ $args = append $args "--node-resource-topology" }}{{ end -}}
{{- if $values.prometheus -}}
  {{- $args = append $args "--listen=$(HOST_IP):9186" -}}
  {{- $host := dict "name" "HOST_IP" "valueFrom" (dict "fieldRef" (dict "fieldPath" "status.hostIP")) -}}
  {{- $_ := set $agent "env" (append $agent.env $host) -}}
  {{- $_ := set $agent "ports" (list (dict "name" "metrics" "containerPort" 9186)) -}}
{{- end -}}
{{- if $values.runtime -}}
  {{- $run := "/run/containerd" -}}
  {{- $socket := "containerd.sock" -}}
  {{- $kept := "/var/lib/containerd" -}}
  {{- if eq (toString $values.runtime) "crio" -}}
    {{- $run = "/run/crio" -}}
    {{- $socket = "crio.sock" -}}
    {{- $kept = "/var/lib/containers" -}}
  {{- else if has (toString $values.runtime) (list "k3s" "rke2") -}}
    {{- $run = "/run/k3s/containerd" -}}
    {{- $kept = printf "/var/lib/rancher/%s/agent/containerd" $values.runtime -}}
  {{- end -}}
  {{- $args = append $args (printf "--runtime-endpoint=%s/%s" $run $socket) -}}
  {{- $mounts := list (dict "name" "runtime" "mountPath" $run) (dict "name" "images" "mountPath" $kept "readOnly" true) (dict "name" "nri" "mountPath" "/var/run/nri") -}}
  {{- $_ := set $agent "volumeMounts" (concat $agent.volumeMounts $mounts) -}}
  {{- $runtime := dict "name" "runtime" "hostPath" (dict "path" $run "type" "DirectoryOrCreate") -}}
  {{- $images := dict "name" "images" "hostPath" (dict "path" $kept "type" "DirectoryOrCreate") -}}
  {{- $nri := dict "name" "nri" "hostPath" (dict "path" "/var/run/nri" "type" "DirectoryOrCreate") -}}
  {{- $_ := set $pod "volumes" (concat $pod.volumes (list $runtime $images $nri)) -}}
{{- end -}}
{{- $_ := set $agent "args" (concat $args $values.extraArgs.agent) -}}
{{- end -}}

{{- define "plimsoll.arbitrator" -}}
{{- $values := .root.Values -}}
{{- $pod := .object.spec.template.spec -}}
{{- $container := index $pod.containers 0 -}}
{{- $_ := set $container "image" (printf "%s:%s" $values.image.repository (default .root.Chart.AppVersion $values.image.tag)) -}}
{{- with $values.image.pullPolicy }}{{ $_ := set $container "imagePullPolicy" . }}{{ end -}}
{{- with $values.imagePullSecrets }}{{ $_ := set $pod "imagePullSecrets" . }}{{ end -}}
{{- with $values.arbitrator.nodeSelector }}{{ $_ := set $pod "nodeSelector" (merge (deepCopy .) $pod.nodeSelector) }}{{ end -}}
{{- with $values.arbitrator.tolerations }}{{ $_ := set $pod "tolerations" . }}{{ end -}}
{{- with $values.resources.arbitrator }}{{ $_ := set $container "resources" . }}{{ end -}}
{{- $_ := set .object.spec "replicas" (int $values.arbitrator.replicas) -}}
{{- $args := $container.args -}}
{{- if $values.arbitrator.dryRun }}{{ $args = append $args "--dry-run" }}{{ end -}}
{{- $_ := set $container "args" (concat $args $values.extraArgs.arbitrator) -}}
{{- end -}}
