//! FNV-1a, 64 bits: what differs by accident has different sums. It is no protection against an attacker.

/// The sum of what was written.
#[derive(Debug)]
pub(crate) struct Fnv(pub(crate) u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_sums() {
        for (text, sum) in [
            ("", 0xcbf2_9ce4_8422_2325),
            ("foobar", 0x8594_4171_f739_67e8),
        ] {
            let mut fnv = Fnv::default();
            fnv.write(text.as_bytes());
            assert_eq!(fnv.0, sum, "{text}");
        }
    }
}
