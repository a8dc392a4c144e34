use super::*;

fn pod(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c}}]}}\n"
    )
}

struct Dir {
    dir: tempfile::TempDir,
    manifests: ManifestDir,
    now: Duration,
}

impl Dir {
    fn new(files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let this = Self {
            manifests: ManifestDir::new(dir.path()),
            dir,
            now: Duration::ZERO,
        };
        for (name, text) in files {
            this.write(name, text);
        }
        this
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.dir.path().join(name), text).unwrap();
    }

    /// Looks until nothing is unsettled; the last change.
    fn settle(&mut self) -> Option<ManifestChange> {
        let mut last = None;
        for _ in 0..5 {
            let (change, is_settling) = self.manifests.look(self.now);
            last = change.or(last);
            if !is_settling {
                return last;
            }
            self.now += Duration::from_millis(SETTLE_MS);
        }
        panic!("does not settle");
    }
}

fn names(pods: &[ManifestPod]) -> Vec<&str> {
    pods.iter()
        .map(|pod| pod.pod.metadata.name.as_str())
        .collect()
}

#[test]
fn added_changed_removed() {
    let mut dir = Dir::new(&[
        ("a.yaml", &pod("a")),
        ("b.json", &pod("b")),
        (".c.yaml", &pod("c")),
        ("d.yaml~", &pod("d")),
    ]);
    let first = dir.settle().unwrap();
    assert_eq!(names(&first.added), ["a", "b"]);
    assert_eq!(dir.settle(), None, "nothing is new");
    dir.write("a.yaml", &pod("a").replace("name: c", "name: cc"));
    std::fs::remove_file(dir.dir.path().join("b.json")).unwrap();
    let change = dir.settle().unwrap();
    assert_eq!(
        (names(&change.changed), change.removed),
        (vec!["a"], vec![PodUid::of_name("default", "b")])
    );
}

#[test]
fn an_empty_directory_is_news_once() {
    let mut dir = Dir::new(&[]);
    assert_eq!(dir.settle(), Some(ManifestChange::default()));
    assert_eq!(dir.settle(), None);
}

#[test]
fn a_file_that_is_being_written_is_not_believed() {
    let mut dir = Dir::new(&[("a.yaml", &(pod("a") + "---\n" + &pod("b")))]);
    dir.settle().unwrap();
    // Only the first document is there yet: to believe it would end pod b.
    dir.write("a.yaml", &pod("a"));
    assert_eq!(dir.manifests.look(dir.now), (None, true));
    dir.now += Duration::from_millis(SETTLE_MS / 2);
    dir.write("a.yaml", &(pod("a") + "---\n" + &pod("b") + "# changed\n"));
    assert_eq!(dir.manifests.look(dir.now), (None, true));
    dir.now += Duration::from_millis(SETTLE_MS / 2);
    assert_eq!(
        dir.manifests.look(dir.now),
        (None, true),
        "settled for half the time only"
    );
    assert_eq!(dir.settle(), None);
    // Replaced by renaming: missing for a moment.
    let path = dir.dir.path().join("a.yaml");
    std::fs::rename(&path, dir.dir.path().join("a.yaml~")).unwrap();
    assert_eq!(dir.manifests.look(dir.now), (None, true));
    std::fs::rename(dir.dir.path().join("a.yaml~"), &path).unwrap();
    assert_eq!(dir.settle(), None);
}

#[test]
fn a_broken_file_keeps_its_pods_and_is_reported_until_it_is_right() {
    let mut dir = Dir::new(&[
        ("a.yaml", &(pod("a") + "---\n" + &pod("b"))),
        ("z.yaml", &pod("z")),
    ]);
    dir.settle().unwrap();
    for broken in [
        "{",
        "",
        &(pod("a") + "---\n" + &pod("b").replace("spec", "spce")),
        "\u{0}",
    ] {
        dir.write("a.yaml", broken);
        let change = dir
            .settle()
            .unwrap_or_else(|| panic!("no change for {broken:?}"));
        assert_eq!(
            (
                change.removed.len(),
                change.added.len(),
                change.changed.len()
            ),
            (0, 0, 0),
            "{broken:?}"
        );
        assert!(
            !change.errors.is_empty()
                && change
                    .errors
                    .iter()
                    .all(|error| error.to_string().contains("a.yaml")),
            "{change:?}"
        );
    }
    // A new pod beside the broken one is taken, the broken one stays.
    dir.write(
        "a.yaml",
        &(pod("new") + "---\n" + &pod("b").replace("spec", "spce")),
    );
    let change = dir.settle().unwrap();
    assert_eq!(
        (names(&change.added), change.removed.len()),
        (vec!["new"], 0)
    );
    dir.write("a.yaml", &pod("b"));
    let change = dir.settle().unwrap();
    assert_eq!(
        (change.removed.len(), change.errors.len()),
        (2, 0),
        "a and new are gone, and the errors: {change:?}"
    );
    dir.write("a.yaml", "{");
    dir.settle().unwrap();
    std::fs::remove_file(dir.dir.path().join("a.yaml")).unwrap();
    let change = dir.settle().unwrap();
    assert_eq!(
        (change.removed, change.errors.len()),
        (vec![PodUid::of_name("default", "b")], 0)
    );
}

#[test]
fn of_two_with_one_name_the_first_is_kept() {
    let mut dir = Dir::new(&[("b.yaml", &pod("same"))]);
    dir.settle().unwrap();
    dir.write("a.yaml", &pod("same"));
    let change = dir.settle().unwrap();
    let [error] = change.errors.as_slice() else {
        panic!("{change:?}")
    };
    let text = error.to_string();
    assert!(
        text.contains("a.yaml:1: pod default_same is already defined at")
            && text.contains("b.yaml:1"),
        "{text}"
    );
    assert!(change.added.is_empty() && change.changed.is_empty());
    std::fs::remove_file(dir.dir.path().join("b.yaml")).unwrap();
    let change = dir.settle().unwrap();
    assert_eq!(
        (change.removed.len(), change.errors.len()),
        (0, 0),
        "the other one takes over: {change:?}"
    );
}

#[test]
fn limits() {
    let mut many = Dir::new(&[]);
    for file in 0..5 {
        let pods: Vec<_> = (0..250)
            .map(|index| pod(&format!("p{file}-{index}")))
            .collect();
        many.write(&format!("{file}.yaml"), &pods.join("---\n"));
    }
    let change = many.settle().unwrap();
    assert_eq!(change.added.len(), PODS_MAX);
    assert!(
        change.errors[0].to_string().contains("226 are not used"),
        "{:?}",
        change.errors
    );
    let mut large = Dir::new(&[(
        "a.yaml",
        &" ".repeat(usize::try_from(FILE_BYTES_MAX).unwrap() + 1),
    )]);
    assert!(
        large.settle().unwrap().errors[0]
            .to_string()
            .contains("larger than")
    );
    let mut files = Dir::new(&[]);
    for file in 0..FILES_MAX + 3 {
        files.write(&format!("{file:05}.yaml"), "");
    }
    assert!(
        files.settle().unwrap().errors[0]
            .to_string()
            .contains("3 are not read")
    );
}

#[test]
fn a_directory_that_goes_away_ends_no_pod() {
    let mut dir = Dir::new(&[("a.yaml", &pod("a"))]);
    dir.settle().unwrap();
    let elsewhere = dir.dir.path().with_extension("moved");
    std::fs::rename(dir.dir.path(), &elsewhere).unwrap();
    let change = dir.settle().unwrap();
    assert_eq!((change.removed.len(), change.errors.len()), (0, 1));
    std::fs::rename(&elsewhere, dir.dir.path()).unwrap();
    assert!(dir.settle().unwrap().errors.is_empty());
}

#[test]
fn the_thread_reports_what_inotify_sees() {
    let dir = tempfile::tempdir().unwrap();
    let (sender, receiver) = std::sync::mpsc::sync_channel(4);
    let watch =
        ManifestWatch::spawn(dir.path(), None, move |change| sender.send(change).is_ok()).unwrap();
    let next = || receiver.recv().unwrap();
    assert_eq!(next(), ManifestChange::default());
    std::fs::write(dir.path().join("a.yaml"), pod("a")).unwrap();
    assert_eq!(names(&next().added), ["a"]);
    let moved = dir.path().with_extension("moved");
    std::fs::rename(dir.path(), &moved).unwrap();
    assert_eq!(next().errors.len(), 1);
    std::fs::rename(&moved, dir.path()).unwrap();
    assert_eq!(next().errors.len(), 0);
    std::fs::remove_file(dir.path().join("a.yaml")).unwrap();
    assert_eq!(next().removed.len(), 1);
    drop(watch);
    assert!(
        receiver.recv().is_err(),
        "the thread has ended and dropped its sender"
    );
}

#[test]
fn the_stack_of_the_thread_has_room_for_the_deepest_file() {
    let dir = tempfile::tempdir().unwrap();
    // As deep as `input::yaml` takes it.
    let deep = format!("{}1{}", "[".repeat(29), "]".repeat(29));
    let text = format!("{}x: {deep}\n", pod("a"));
    std::fs::write(dir.path().join("a.yaml"), text).unwrap();
    let (sender, receiver) = std::sync::mpsc::sync_channel(4);
    let _watch =
        ManifestWatch::spawn(dir.path(), None, move |change| sender.send(change).is_ok()).unwrap();
    // A file is read when it has settled.
    let change = receiver
        .iter()
        .find(|change| !change.errors.is_empty())
        .unwrap();
    let errors: Vec<String> = change.errors.iter().map(ToString::to_string).collect();
    assert!(
        errors.len() == 1 && errors[0].contains("x: ") && !errors[0].contains("nested"),
        "{errors:?}"
    );
}

#[test]
fn a_missing_directory_is_refused_at_once() {
    let error = ManifestWatch::spawn("/nonexistent/manifests", None, |_| true).unwrap_err();
    assert!(error.to_string().contains("--manifests"), "{error}");
}

#[test]
fn budgets_come_change_and_go_and_the_first_counts() {
    let budget = |least: u32| {
        format!(
            "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {{name: web}}\nspec: {{minAvailable: {least}, selector: {{}}}}\n"
        )
    };
    let mut dir = Dir::new(&[("a.yaml", &budget(1)), ("b.yaml", &pod("b"))]);
    let first = dir.settle().unwrap();
    assert_eq!((names(&first.added), first.budgets.len()), (vec!["b"], 1));
    assert_eq!(first.budgets[0].allows(2, 2, 0), 1);
    dir.write("a.yaml", &budget(2));
    dir.write("c.yaml", &budget(3));
    let change = dir.settle().unwrap();
    assert_eq!(change.budgets.len(), 1);
    assert_eq!(change.budgets[0].allows(2, 2, 0), 0);
    assert!(
        change.errors[0]
            .to_string()
            .contains("c.yaml:1: metadata.name: budget default/web is already defined"),
        "{:?}",
        change.errors
    );
    // A file that is wrong keeps its budget, one that is removed does not.
    dir.write(
        "a.yaml",
        "apiVersion: policy/v1\nkind: PodDisruptionBudget\n",
    );
    assert_eq!(dir.settle().unwrap().budgets_removed, []);
    std::fs::remove_file(dir.dir.path().join("a.yaml")).unwrap();
    std::fs::remove_file(dir.dir.path().join("c.yaml")).unwrap();
    assert_eq!(
        dir.settle().unwrap().budgets_removed,
        [Arc::from("default/web")]
    );
}
