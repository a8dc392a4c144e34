//! The fingerprint of a set of pods: `nodeTopologyPodsFingerprint` of a NodeResourceTopology object.
//!
//! Source: k8stopologyawareschedwg/podfingerprint, version `v001`. Of each pod the XXH64 of its name, with the XXH64 of
//! its namespace as the seed; these numbers, sorted and each as eight bytes with the lowest first, are hashed once
//! more. XXH64: its specification (xxHash fast digest algorithm, 0.1.1).

/// What all fingerprints of this version begin with.
const PREFIX: &str = "pfp0v001";

const PRIMES: [u64; 5] = [
    0x9E37_79B1_85EB_CA87,
    0xC2B2_AE3D_27D4_EB4F,
    0x1656_67B1_9E37_79F9,
    0x85EB_CA77_C2B2_AE63,
    0x27D4_EB2F_1656_67C5,
];

/// Pods in any order; the same set has the same fingerprint.
#[derive(Debug, Clone, Default)]
pub struct PodsFingerprint {
    pods: Vec<u64>,
}

impl PodsFingerprint {
    /// Adds a pod.
    pub fn add(&mut self, namespace: &str, name: &str) {
        let seed = xxh64(namespace.as_bytes(), 0);
        self.pods.push(xxh64(name.as_bytes(), seed));
    }

    /// The fingerprint of what was added.
    #[must_use]
    pub fn sign(mut self) -> String {
        self.pods.sort_unstable();
        let bytes: Vec<u8> = self.pods.iter().flat_map(|pod| pod.to_le_bytes()).collect();
        format!("{PREFIX}{:016x}", xxh64(&bytes, 0))
    }
}

fn round(accumulator: u64, lane: u64) -> u64 {
    accumulator
        .wrapping_add(lane.wrapping_mul(PRIMES[1]))
        .rotate_left(31)
        .wrapping_mul(PRIMES[0])
}

fn lanes(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let eight = bytes.as_chunks::<8>().0;
    eight.iter().map(|bytes| u64::from_le_bytes(*bytes))
}

fn xxh64(bytes: &[u8], seed: u64) -> u64 {
    let (stripes, rest) = bytes.as_chunks::<32>();
    let mut hash = if stripes.is_empty() {
        seed.wrapping_add(PRIMES[4])
    } else {
        of_stripes(stripes, seed)
    };
    hash = hash.wrapping_add(bytes.len() as u64);
    for lane in lanes(rest) {
        hash ^= round(0, lane);
        hash = hash
            .rotate_left(27)
            .wrapping_mul(PRIMES[0])
            .wrapping_add(PRIMES[3]);
    }
    let (fours, ones) = rest.as_chunks::<8>().1.as_chunks::<4>();
    for four in fours {
        hash ^= u64::from(u32::from_le_bytes(*four)).wrapping_mul(PRIMES[0]);
        hash = hash
            .rotate_left(23)
            .wrapping_mul(PRIMES[1])
            .wrapping_add(PRIMES[2]);
    }
    for one in ones {
        hash ^= u64::from(*one).wrapping_mul(PRIMES[4]);
        hash = hash.rotate_left(11).wrapping_mul(PRIMES[0]);
    }
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(PRIMES[1]);
    hash ^= hash >> 29;
    hash = hash.wrapping_mul(PRIMES[2]);
    hash ^ hash >> 32
}

fn of_stripes(stripes: &[[u8; 32]], seed: u64) -> u64 {
    let mut accumulators = [
        seed.wrapping_add(PRIMES[0]).wrapping_add(PRIMES[1]),
        seed.wrapping_add(PRIMES[1]),
        seed,
        seed.wrapping_sub(PRIMES[0]),
    ];
    for stripe in stripes {
        for (accumulator, lane) in accumulators.iter_mut().zip(lanes(stripe)) {
            *accumulator = round(*accumulator, lane);
        }
    }
    let turned = accumulators.iter().zip([1, 7, 12, 18]);
    let mut hash = turned.fold(0_u64, |sum, (accumulator, by)| {
        sum.wrapping_add(accumulator.rotate_left(by))
    });
    for accumulator in accumulators {
        hash ^= round(0, accumulator);
        hash = hash.wrapping_mul(PRIMES[0]).wrapping_add(PRIMES[3]);
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of xxHash's own command-line program (`xxhsum -H1`), seed 0.
    #[test]
    fn hashes_are_those_of_the_specification() {
        assert_eq!(xxh64(b"", 0), 0xef46_db37_51d8_e999);
        assert_eq!(xxh64(b"a", 0), 0xd24e_c4f1_a98c_6e5b);
        assert_eq!(xxh64(b"abc", 0), 0x44bc_2cf5_ad77_0999);
    }

    #[test]
    fn the_order_of_pods_does_not_matter_and_their_names_do() {
        let sign = |pods: &[(&str, &str)]| {
            let mut fingerprint = PodsFingerprint::default();
            for (namespace, name) in pods {
                fingerprint.add(namespace, name);
            }
            fingerprint.sign()
        };
        let (a, b) = (("shop", "web-0"), ("kube-system", "dns"));
        assert_eq!(sign(&[a, b]), sign(&[b, a]));
        assert_ne!(sign(&[a]), sign(&[a, b]));
        assert_ne!(sign(&[("a", "b")]), sign(&[("b", "a")]));
        assert_eq!(sign(&[]), "pfp0v001ef46db3751d8e999");
        // By another implementation of this, which has the fingerprint of podfingerprint's 259 pods
        // (testdata/pods.json) right.
        let longer = [
            a,
            ("shop", "web-1"),
            ("shop", "web-2"),
            (
                "kube-system",
                "coredns-7c65d6cfc9-a-name-of-more-than-thirty-two-bytes",
            ),
            ("a-namespace-of-more-than-thirty-two-bytes", "db-0"),
        ];
        assert_eq!(sign(&longer), "pfp0v001f6a75439e2c5effa");
    }
}
