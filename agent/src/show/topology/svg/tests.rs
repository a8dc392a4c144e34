use super::*;
use crate::show::topology::holders::Holder;

fn machine(text: &str) -> Machine {
    serde_json::from_str(text).unwrap()
}

const SMALL: &str = r#"{"version": 1, "name": "a <b> & \"c\"", "offline": "3,5", "isolated": "1",
    "cores": [{"threads": ["0-1", "2-3"], "socket": 0, "node": 0, "l3": 0}, {"threads": ["5"]}],
    "nodes": [{"id": 0, "memory": "1Gi", "distances": [10, 20]}, {"id": 1, "memory": "2Gi", "distances": [20, 10]}]}"#;

/// Elements that are open, and whether each is closed by its own end; the writer never splits a tag over lines of
/// attributes.
fn is_well_formed(svg: &str) -> bool {
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let Some((tag, _)) = tag.split_once('>') else {
            return false;
        };
        let name = tag
            .split([' ', '/'])
            .find(|word| !word.is_empty())
            .unwrap_or("");
        if tag.starts_with('/') {
            if open.pop() != Some(name) {
                return false;
            }
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    open.is_empty()
}

#[test]
fn each_cpu_has_a_cell_with_its_holder() {
    let set = |list| CpuSet::parse(list).unwrap();
    let holders = Holders {
        exclusive: vec![Holder {
            name: "default/web/app".into(),
            cpus: set("1"),
        }],
        reserved: set("0"),
        shared: set("0,2"),
    };
    let svg = draw(&machine(SMALL), Some(&holders));
    assert!(is_well_formed(&svg), "{svg}");
    for part in [
        r##"fill="#77aadd"/><text class="figure cpu isolated" x="##,
        "<title>CPU 1, a thread of the core of CPUs 1,3, socket 0, NUMA node 0, L3 0: default/web/app, isolated from the scheduler</title>",
        "<title>CPU 2, a thread of the core of CPUs 0,2, socket 0, NUMA node 0, L3 0: shared pool</title>",
        "a thread of the core of CPUs 1,3, socket 0, NUMA node 0, L3 0: offline</title>",
        ">a &lt;b&gt; &amp; &quot;c&quot;</text>",
        ">NUMA node 1, no CPUs · 2Gi</text>",
        ">default/web/app: CPUs 1</text>",
        ">offline: CPUs 3,5</text>",
        "from node 1 to node 0: 20",
    ] {
        assert!(svg.contains(part), "{part} in {svg}");
    }
    assert_eq!(svg.matches(r#"class="core""#).count(), 3);
}

#[test]
fn nothing_is_drawn_outside_the_picture() {
    let numbers = |text: &str, name: &str| -> u32 {
        let value = text.split(&format!(" {name}=\"")).nth(1).unwrap();
        value.split('"').next().unwrap().parse().unwrap()
    };
    let svg = draw(&machine(SMALL), None);
    let head = svg.lines().next().unwrap();
    let (wide, high) = (numbers(head, "width"), numbers(head, "height"));
    let rects: Vec<&str> = svg
        .split("<rect ")
        .filter(|it| it.contains("rx="))
        .collect();
    assert!(rects.len() > 8);
    for rect in rects {
        let rect = format!(" {rect}");
        assert!(numbers(&rect, "x") + numbers(&rect, "width") <= wide);
        assert!(numbers(&rect, "y") + numbers(&rect, "height") <= high);
    }
}

#[test]
fn many_boxes_are_about_as_wide_as_a_screen() {
    let sizes: Vec<Area> = (0..128)
        .map(|_| Area {
            size: Size { wide: 40, high: 30 },
            drawn: Vec::new(),
        })
        .collect();
    let Size { wide, high } = Area::of(sizes, 10, 0, 0).size;
    assert!(wide > high && wide < 3 * high, "{wide} x {high}");
}
