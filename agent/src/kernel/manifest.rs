//! What the agent that loads the programs found out about each hook, kept in the map `MANIFEST` for the agents after
//! it.

use aya::maps::{Array, MapData};
use plimsoll_abi::MANIFEST_BYTES;
use serde::{Deserialize, Serialize};

use super::{HookReport, HookState, Unavailable};

/// What the agent that loads the programs leaves for the next one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) hooks: Vec<ManifestHook>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ManifestHook {
    pub(super) program: String,
    /// `None`: attached.
    pub(super) unavailable: Option<Earlier>,
}

/// Why a hook was not attached, without its types.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Earlier {
    text: String,
    is_loss: bool,
    refuses_kind: bool,
}

impl From<Earlier> for Unavailable {
    fn from(earlier: Earlier) -> Self {
        Unavailable::Earlier {
            text: earlier.text,
            is_loss: earlier.is_loss,
            refuses_kind: earlier.refuses_kind,
        }
    }
}

impl Manifest {
    pub(super) fn new(hooks: &[HookReport]) -> Self {
        let hooks = hooks
            .iter()
            .map(|hook| ManifestHook {
                program: hook.program.to_owned(),
                unavailable: match &hook.state {
                    HookState::Attached { .. } => None,
                    HookState::Unavailable(reason) => Some(Earlier {
                        text: reason.beside_target(),
                        is_loss: reason.is_loss(),
                        refuses_kind: reason.refuses_kind(),
                    }),
                },
            })
            .collect();
        Self { hooks }
    }

    /// Writes it into its map. `None` if it does not fit, or the kernel refuses.
    pub(super) fn store(&self, map: &mut Array<MapData, [u8; MANIFEST_BYTES]>) -> Option<()> {
        map.set(0, self.to_bytes()?, 0).ok()
    }

    fn to_bytes(&self) -> Option<[u8; MANIFEST_BYTES]> {
        let text = serde_json::to_vec(self).ok()?;
        let mut bytes = [0; MANIFEST_BYTES];
        bytes.get_mut(..text.len())?.copy_from_slice(&text);
        Some(bytes)
    }

    pub(super) fn of_map(map: &Array<MapData, [u8; MANIFEST_BYTES]>) -> Option<Self> {
        Self::of_bytes(&map.get(&0, 0).ok()?)
    }

    fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let length = bytes.iter().position(|byte| *byte == 0)?;
        serde_json::from_slice(&bytes[..length]).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::super::HookKind;
    use super::super::hooks::HOOKS;
    use super::*;

    #[test]
    fn a_manifest_is_read_back() {
        let hooks = [
            HookState::Attached {
                verified_insns: Some(3),
                translated_insns: None,
            },
            HookState::Unavailable(Unavailable::NotNeeded { by: "x" }),
            HookState::Unavailable(Unavailable::KindRefused {
                kind: HookKind::Fentry,
                reason: "errno 1 (EPERM)".to_owned(),
            }),
        ]
        .map(|state| HookReport {
            family: HOOKS[0].family,
            program: HOOKS[0].program,
            kind: HOOKS[0].kind,
            target: HOOKS[0].target,
            state,
        });
        let manifest = Manifest::new(&hooks);
        let read = Manifest::of_bytes(&manifest.to_bytes().unwrap()).unwrap();
        assert_eq!(read, manifest);
        let earlier: Vec<Unavailable> = read
            .hooks
            .into_iter()
            .filter_map(|hook| hook.unavailable)
            .map(Into::into)
            .collect();
        assert_eq!(earlier[0].to_string(), "not needed: x is attached");
        assert!(!earlier[0].is_loss() && !earlier[0].refuses_kind());
        assert!(earlier[1].is_loss() && earlier[1].refuses_kind());
        assert_eq!(Manifest::of_bytes(&[0; MANIFEST_BYTES]), None);
    }
}
