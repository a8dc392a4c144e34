//! The hooks, a row each: what a program attaches to, what it needs, and which other program makes it superfluous.
//!
//! The order of [`HOOKS`] is the order of loading, so a second choice comes after the first.

use std::fmt;

/// What a hook is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// What is charged to memory cgroups in all: the node's armed threshold.
    Charges,
    /// Cgroups coming, going, filling and emptying.
    Lifecycle,
    /// The kernel's OOM killer.
    Oom,
    /// Free memory below a zone watermark.
    Reclaim,
    /// `memory.high`, `memory.max` and memcg OOM.
    Memcg,
    /// CPU bandwidth throttling.
    Throttle,
    /// The last line: kills by a program.
    LastLine,
    /// Waits for memory.
    Stall,
    /// Pages that are read back.
    Refault,
    /// Processes born and programs started.
    Processes,
}

impl Family {
    /// All of them.
    pub const ALL: [Family; 10] = [
        Family::Charges,
        Family::Lifecycle,
        Family::Oom,
        Family::Reclaim,
        Family::Memcg,
        Family::Throttle,
        Family::LastLine,
        Family::Stall,
        Family::Refault,
        Family::Processes,
    ];

    /// The word for output and options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Family::Charges => "charges",
            Family::Lifecycle => "lifecycle",
            Family::Oom => "oom",
            Family::Reclaim => "reclaim",
            Family::Memcg => "memcg",
            Family::Throttle => "throttle",
            Family::LastLine => "last-line",
            Family::Stall => "stall",
            Family::Refault => "refault",
            Family::Processes => "processes",
        }
    }
}

/// A set of families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookSet(u16);

impl HookSet {
    /// Every family.
    pub const ALL: HookSet = HookSet((1 << Family::ALL.len()) - 1);
    /// None.
    pub const NONE: HookSet = HookSet(0);

    /// This set and one more.
    #[must_use]
    pub const fn with(self, family: Family) -> HookSet {
        HookSet(self.0 | 1 << family as u8)
    }

    /// This set without one.
    #[must_use]
    pub const fn without(self, family: Family) -> HookSet {
        HookSet(self.0 & !(1 << family as u8))
    }

    /// Whether it has the family.
    #[must_use]
    pub const fn contains(self, family: Family) -> bool {
        self.0 & 1 << family as u8 != 0
    }
}

/// How a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookKind {
    /// On entry of a kernel function, typed arguments.
    Fentry,
    /// On exit of a kernel function, typed arguments and the return value.
    Fexit,
    /// On a tracepoint, typed arguments.
    TpBtf,
}

impl fmt::Display for HookKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HookKind::Fentry => "fentry",
            HookKind::Fexit => "fexit",
            HookKind::TpBtf => "tp_btf",
        })
    }
}

pub(super) struct Hook {
    pub(super) family: Family,
    /// Name of the program in the object.
    pub(super) program: &'static str,
    pub(super) kind: HookKind,
    /// Kernel function or tracepoint.
    pub(super) target: &'static str,
    /// Members that it loads, by their names in `Layout::MEMBERS`.
    pub(super) needs: &'static [&'static [&'static str]],
    /// Superfluous when this program is attached.
    pub(super) unless: Option<&'static str>,
    /// Useless unless one of these programs is attached.
    pub(super) only_with: &'static [&'static str],
    /// Reads the kernel's own counters of pages.
    pub(super) counters: bool,
}

const CGROUP_ID: &[&str] = &["cgroup.kn", "kernfs_node.id"];
const CSS_ID: &[&str] = &["cgroup_subsys_state.cgroup", "cgroup.kn", "kernfs_node.id"];
const MEMCG_ID: &[&str] = &[
    "mem_cgroup.css",
    "cgroup_subsys_state.cgroup",
    "cgroup.kn",
    "kernfs_node.id",
];
const HIERARCHY: &[&str] = &["cgroup.root", "cgroup_root.hierarchy_id"];
const THROTTLED_GROUP: &[&str] = &["cfs_rq.tg", "task_group.css"];
/// What the pod of a task is found by, from the root downwards.
const TASK_CGROUPS: &[&str] = &[
    "task_struct.cgroups",
    "css_set.dfl_cgrp",
    "css_set.subsys[memory_cgrp_id]",
    "cgroup.level",
    "cgroup.ancestors",
];
/// What the pod of a cgroup is found by, under which it is counted.
const ABOVE: &[&str] = &["cgroup.level", "cgroup.ancestors"];
const TASK_MEMORY_ID: &[&str] = &[
    "task_struct.cgroups",
    "css_set.dfl_cgrp",
    "css_set.subsys[memory_cgrp_id]",
];
const FOLIO_PAGES: &[&str] = &["folio.flags", "folio.nr_pages", "PG_head"];
const THROTTLED_CLOCKS: &[&str] = &["cfs_rq.throttled_clock", "cfs_rq.rq", "rq.clock"];
const VICTIM: &[&str] = &[
    "task_struct.tgid",
    "task_struct.cgroups",
    "task_struct.signal",
    "task_struct.comm",
    "task_struct.mm",
    "css_set.dfl_cgrp",
    "css_set.subsys[memory_cgrp_id]",
    "signal_struct.oom_score_adj",
    "mm_struct.total_vm",
    "mm_struct.rss_stat[MM_ANONPAGES]",
];

const fn hook(family: Family, program: &'static str, kind: HookKind, target: &'static str) -> Hook {
    Hook {
        family,
        program,
        kind,
        target,
        needs: &[],
        unless: None,
        only_with: &[],
        counters: false,
    }
}

impl Hook {
    const fn needs(self, needs: &'static [&'static [&'static str]]) -> Hook {
        Hook { needs, ..self }
    }

    const fn unless(self, program: &'static str) -> Hook {
        Hook {
            unless: Some(program),
            ..self
        }
    }

    const fn only_with(self, programs: &'static [&'static str]) -> Hook {
        Hook {
            only_with: programs,
            ..self
        }
    }

    const fn with_counters(self) -> Hook {
        Hook {
            counters: true,
            ..self
        }
    }
}

use Family::{
    Charges, LastLine, Lifecycle, Memcg, Oom, Processes, Reclaim, Refault, Stall, Throttle,
};
use HookKind::{Fentry, Fexit, TpBtf};

/// Name of the program that covers every memcg event where the kernel has its target.
const ALL_EVENTS: &str = "memcg_memory_event";

pub(super) const HOOKS: &[Hook] = &[
    // Lifecycle first: cgroups made while the rest is being loaded are seen.
    hook(Lifecycle, "cgroup_mkdir", TpBtf, "cgroup_mkdir").needs(&[
        CGROUP_ID,
        HIERARCHY,
        &["cgroup.level"],
    ]),
    hook(Lifecycle, "cgroup_rmdir", TpBtf, "cgroup_rmdir").needs(&[
        CGROUP_ID,
        HIERARCHY,
        &["cgroup.level"],
    ]),
    hook(Lifecycle, "cgroup_attach_task", TpBtf, "cgroup_attach_task").needs(&[
        CGROUP_ID,
        HIERARCHY,
        &["task_struct.tgid"],
    ]),
    hook(
        Lifecycle,
        "cgroup_notify_populated",
        TpBtf,
        "cgroup_notify_populated",
    )
    .needs(&[CGROUP_ID, HIERARCHY]),
    hook(Charges, "charges_count", Fentry, "page_counter_try_charge"),
    hook(Oom, "oom_kill_process", Fentry, "oom_kill_process").needs(&[
        MEMCG_ID,
        VICTIM,
        ABOVE,
        &[
            "oom_control.memcg",
            "oom_control.chosen",
            "oom_control.chosen_points",
        ],
    ]),
    // Beside the former: of a cgroup that is killed as a whole that one names the first victim, this one each.
    hook(Oom, "mark_victim", TpBtf, "mark_victim").needs(&[CSS_ID, VICTIM, ABOVE]),
    hook(Reclaim, "kswapd_wake", TpBtf, "mm_vmscan_kswapd_wake"),
    hook(
        Reclaim,
        "direct_reclaim",
        TpBtf,
        "mm_vmscan_direct_reclaim_begin",
    )
    .needs(&[&["mm_vmscan_direct_reclaim_begin(order)"]]),
    hook(Memcg, ALL_EVENTS, Fentry, "__memcg_memory_event").needs(&[MEMCG_ID, ABOVE]),
    // The end of a mark before its begin, so that no mark stays behind.
    hook(Memcg, "memcg_high_end", Fexit, "reclaim_high").unless(ALL_EVENTS),
    hook(Memcg, "memcg_high", Fentry, "reclaim_high")
        .needs(&[MEMCG_ID, ABOVE])
        .unless(ALL_EVENTS)
        .only_with(&["memcg_high_end"]),
    hook(Memcg, "memcg_reclaim_end", Fexit, "memory_reclaim").unless(ALL_EVENTS),
    hook(Memcg, "memcg_reclaim_begin", Fentry, "memory_reclaim")
        .unless(ALL_EVENTS)
        .only_with(&["memcg_reclaim_end"]),
    hook(Memcg, "memcg_high_write_end", Fexit, "memory_high_write").unless(ALL_EVENTS),
    hook(Memcg, "memcg_high_write_begin", Fentry, "memory_high_write")
        .unless(ALL_EVENTS)
        .only_with(&["memcg_high_write_end"]),
    hook(Memcg, "memcg_max_write_end", Fexit, "memory_max_write").unless(ALL_EVENTS),
    hook(Memcg, "memcg_max_write_begin", Fentry, "memory_max_write")
        .unless(ALL_EVENTS)
        .only_with(&["memcg_max_write_end"]),
    hook(Memcg, "memcg_max", Fentry, "try_to_free_mem_cgroup_pages")
        .needs(&[MEMCG_ID, ABOVE])
        .unless(ALL_EVENTS)
        .only_with(&["memcg_high"]),
    hook(Memcg, "memcg_oom", Fentry, "mem_cgroup_out_of_memory")
        .needs(&[MEMCG_ID, ABOVE])
        .unless(ALL_EVENTS),
    hook(Memcg, "memcg_oom_kill", Fentry, "__oom_kill_process")
        .needs(&[CSS_ID, TASK_MEMORY_ID, ABOVE])
        .unless(ALL_EVENTS),
    hook(
        Memcg,
        "memcg_oom_group_kill",
        Fexit,
        "mem_cgroup_get_oom_group",
    )
    .needs(&[MEMCG_ID, ABOVE])
    .unless(ALL_EVENTS),
    // The end before the begin, so that no start is sent whose end would be missed.
    hook(Throttle, "throttle_stop", Fexit, "unthrottle_cfs_rq").needs(&[
        CSS_ID,
        THROTTLED_GROUP,
        THROTTLED_CLOCKS,
        ABOVE,
    ]),
    hook(Throttle, "throttle_stop_begin", Fentry, "unthrottle_cfs_rq")
        .needs(&[THROTTLED_CLOCKS])
        .only_with(&["throttle_stop"]),
    hook(Throttle, "throttle_start", Fexit, "throttle_cfs_rq")
        .needs(&[CSS_ID, THROTTLED_GROUP, ABOVE])
        .only_with(&["throttle_stop_begin"]),
    hook(
        LastLine,
        "last_line_charge",
        Fentry,
        "page_counter_try_charge",
    )
    .needs(&[CSS_ID, TASK_CGROUPS])
    .only_with(&["charges_count"])
    .with_counters(),
    hook(
        LastLine,
        "last_line_reclaim",
        TpBtf,
        "mm_vmscan_direct_reclaim_begin",
    )
    .needs(&[CSS_ID, TASK_CGROUPS])
    .with_counters(),
    hook(LastLine, "last_line_retry", TpBtf, "reclaim_retry_zone").needs(&[CSS_ID, TASK_CGROUPS]),
    // Each end before its begin, so that no begin stays behind.
    hook(Stall, "stall_leave", Fentry, "psi_memstall_leave").needs(&[
        CSS_ID,
        TASK_MEMORY_ID,
        ABOVE,
    ]),
    hook(Stall, "stall_enter", Fentry, "psi_memstall_enter")
        .needs(&[&["task_struct.in_memstall"]])
        .only_with(&["stall_leave"]),
    hook(Stall, "high_sleep_end", Fexit, "schedule_timeout_killable")
        .needs(&[CSS_ID, TASK_MEMORY_ID, ABOVE])
        .only_with(&["stall_enter"]),
    hook(Stall, "high_sleep", Fentry, "schedule_timeout_killable").only_with(&["high_sleep_end"]),
    hook(
        Stall,
        "limit_reclaim_end",
        Fexit,
        "try_to_free_mem_cgroup_pages",
    )
    .needs(&[MEMCG_ID, TASK_MEMORY_ID, ABOVE]),
    hook(
        Stall,
        "limit_reclaim",
        Fentry,
        "try_to_free_mem_cgroup_pages",
    )
    .only_with(&["limit_reclaim_end"]),
    hook(
        Stall,
        "limit_reclaim_end_tp",
        TpBtf,
        "mm_vmscan_memcg_reclaim_end",
    )
    .needs(&[CSS_ID, TASK_MEMORY_ID, ABOVE])
    .unless("limit_reclaim"),
    hook(
        Stall,
        "limit_reclaim_tp",
        TpBtf,
        "mm_vmscan_memcg_reclaim_begin",
    )
    .unless("limit_reclaim")
    .only_with(&["limit_reclaim_end_tp"]),
    hook(
        Stall,
        "node_reclaim_end",
        TpBtf,
        "mm_vmscan_direct_reclaim_end",
    )
    .needs(&[CSS_ID, TASK_MEMORY_ID, ABOVE]),
    hook(
        Stall,
        "node_reclaim",
        TpBtf,
        "mm_vmscan_direct_reclaim_begin",
    )
    .only_with(&["node_reclaim_end"]),
    hook(Refault, "refault_page", Fentry, "workingset_refault").needs(&[
        CSS_ID,
        TASK_MEMORY_ID,
        ABOVE,
        FOLIO_PAGES,
        &["PG_swapbacked"],
    ]),
    hook(Refault, "swap_in_folio", Fentry, "swap_read_folio").needs(&[
        CSS_ID,
        TASK_MEMORY_ID,
        ABOVE,
        FOLIO_PAGES,
    ]),
    hook(Refault, "swap_in_page", Fentry, "swap_readpage")
        .needs(&[CSS_ID, TASK_MEMORY_ID, ABOVE])
        .unless("swap_in_folio"),
    hook(Processes, "process_fork", TpBtf, "sched_process_fork").needs(&[
        CSS_ID,
        TASK_MEMORY_ID,
        &["task_struct.tgid", "task_struct.pid"],
    ]),
    hook(Processes, "process_exec", TpBtf, "sched_process_exec").needs(&[CSS_ID, TASK_MEMORY_ID]),
];

#[cfg(test)]
mod tests {
    use plimsoll_abi::Layout;

    use super::*;

    #[test]
    fn every_need_is_a_member_of_the_layout() {
        for hook in HOOKS {
            for member in hook.needs.iter().copied().flatten() {
                assert!(
                    Layout::MEMBERS.contains(member),
                    "{}: {member}",
                    hook.program
                );
            }
        }
    }

    #[test]
    fn a_hook_refers_to_hooks_before_it() {
        for (index, hook) in HOOKS.iter().enumerate() {
            for other in hook.only_with.iter().chain(hook.unless.iter()) {
                assert!(
                    HOOKS[..index]
                        .iter()
                        .any(|earlier| earlier.program == *other),
                    "{}: {other}",
                    hook.program
                );
            }
        }
    }

    #[test]
    fn sets_hold_what_was_put_in() {
        let set = HookSet::NONE.with(Family::Oom).with(Family::Stall);
        for family in Family::ALL {
            assert_eq!(
                set.contains(family),
                matches!(family, Family::Oom | Family::Stall)
            );
            assert!(HookSet::ALL.contains(family));
            assert!(!HookSet::ALL.without(family).contains(family));
        }
    }
}
