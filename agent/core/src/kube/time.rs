//! Times as the Kubernetes API writes them (RFC 3339, UTC).

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Seconds of a day.
const DAY_SECONDS: i64 = 86_400;

/// A time, in seconds and nanoseconds since 1970 in UTC. Leap seconds are not counted, as in the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time {
    /// Whole seconds.
    pub seconds: i64,
    /// What is above, below 10⁹.
    pub nanos: u32,
}

/// A text that is no time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a time: write it as in 2026-01-31T12:00:00Z")]
pub struct TimeError {
    /// The text as given.
    pub text: String,
}

/// Days since 1970 of a date in the Gregorian calendar.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March here, so that the leap day is the last one.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

impl Time {
    /// Reads a time.
    ///
    /// # Errors
    /// If the text is not of the form `2026-01-31T12:00:00Z`, with fractions of a second and offsets allowed.
    pub fn parse(text: &str) -> Result<Self, TimeError> {
        Self::read(text).ok_or_else(|| TimeError {
            text: text.to_owned(),
        })
    }

    fn read(text: &str) -> Option<Self> {
        let number = |range: std::ops::Range<usize>, min: i64, max: i64| {
            let digits = text.get(range)?;
            let all_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
            let value = digits.parse::<i64>().ok().filter(|_| all_digits)?;
            (min..=max).contains(&value).then_some(value)
        };
        let is = |at: usize, allowed: &[u8]| {
            text.as_bytes()
                .get(at)
                .is_some_and(|byte| allowed.contains(byte))
        };
        let separators =
            is(4, b"-") && is(7, b"-") && is(10, b"Tt") && is(13, b":") && is(16, b":");
        if !separators {
            return None;
        }
        let date = days_of(
            number(0..4, 0, 9999)?,
            number(5..7, 1, 12)?,
            number(8..10, 1, 31)?,
        );
        let clock =
            number(11..13, 0, 23)? * 3600 + number(14..16, 0, 59)? * 60 + number(17..19, 0, 60)?;
        let rest = text.get(19..)?;
        let (nanos, rest) = match rest.strip_prefix('.') {
            None => (0, rest),
            Some(fraction) => {
                let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
                if digits == 0 {
                    return None;
                }
                let kept = fraction.get(..digits.min(9))?;
                (
                    format!("{kept:0<9}").parse::<u32>().ok()?,
                    fraction.get(digits..)?,
                )
            }
        };
        let offset = match rest.as_bytes() {
            b"Z" | b"z" => 0,
            [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
                let hours: i64 = rest.get(1..3)?.parse().ok()?;
                let minutes: i64 = rest.get(4..6)?.parse().ok()?;
                (hours * 3600 + minutes * 60) * if *sign == b'-' { -1 } else { 1 }
            }
            _ => return None,
        };
        Some(Self {
            seconds: date * DAY_SECONDS + clock - offset,
            nanos,
        })
    }

    /// The time so many seconds later.
    #[must_use]
    pub fn after(self, seconds: i64) -> Self {
        Self {
            seconds: self.seconds.saturating_add(seconds),
            ..self
        }
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days = self.seconds.div_euclid(DAY_SECONDS) + 719_468;
        let clock = self.seconds.rem_euclid(DAY_SECONDS);
        let era = days.div_euclid(146_097);
        let day_of_era = days.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * from_march + 2) / 5 + 1;
        let month = if from_march < 10 {
            from_march + 3
        } else {
            from_march - 9
        };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let (hour, minute, second) = (clock / 3600, clock / 60 % 60, clock % 60);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}"
        )?;
        if self.nanos != 0 {
            let fraction = format!("{:09}", self.nanos);
            write!(f, ".{}", fraction.trim_end_matches('0'))?;
        }
        f.write_str("Z")
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_written() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:00:00Z", 951_825_600),
            ("2026-11-23T02:39:45Z", 1_795_401_585),
            ("1969-12-31T23:59:59Z", -1),
        ] {
            let time = Time::parse(text).unwrap();
            assert_eq!(time, Time { seconds, nanos: 0 }, "{text}");
            assert_eq!(time.to_string(), text);
        }
        let offset = Time::parse("2026-01-01T01:30:00.5+01:30").unwrap();
        assert_eq!(offset.to_string(), "2026-01-01T00:00:00.5Z");
        for bad in [
            "",
            "2026-01-01",
            "2026-13-01T00:00:00Z",
            "2026-01-01T00:00:00",
            "2026-01-01T00:00:00.Z",
        ] {
            assert!(Time::parse(bad).is_err(), "{bad}");
        }
    }
}
