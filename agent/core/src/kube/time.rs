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

/// Days of a month.
fn days_in(year: i64, month: i64) -> i64 {
    let (next_year, next_month) = if month == 12 {
        (year + 1, 1)
    } else {
        (year, month + 1)
    };
    days_of(next_year, next_month, 1) - days_of(year, month, 1)
}

/// A number of exactly so many digits at the beginning of a text, at most `max`, and what follows it.
fn number(text: &[u8], digits: usize, max: i64) -> Option<(i64, &[u8])> {
    let (number, rest) = text.split_at_checked(digits)?;
    let value = number.iter().try_fold(0, |value, byte| {
        byte.is_ascii_digit()
            .then(|| value * 10 + i64::from(byte - b'0'))
    })?;
    (value <= max).then_some((value, rest))
}

/// The fraction of a second at the beginning of a text, in nanoseconds, and what follows it; 0 if there is none.
fn fraction(text: &[u8]) -> (u32, &[u8]) {
    let [b'.' | b',', after @ ..] = text else {
        return (0, text);
    };
    let digits = after.iter().take_while(|byte| byte.is_ascii_digit());
    let (digits, rest) = after.split_at(digits.count());
    if digits.is_empty() {
        return (0, text);
    }
    let kept = digits.iter().chain(std::iter::repeat(&b'0')).take(9);
    let nanos = kept.fold(0, |nanos, byte| nanos * 10 + u32::from(byte - b'0'));
    (nanos, rest)
}

impl Time {
    /// Reads a time. What is a time is what Go's `time.Parse` takes with the layout `time.RFC3339`, for with that the
    /// API server reads one: `T` and `Z` are capital letters, the day is one of its month, and no second is the 60th;
    /// an hour may have one digit, a comma may stand before the fraction of a second, of which nine digits count, and
    /// offsets reach to 24 hours and 60 minutes.
    ///
    /// Source: `parse` in `src/time/format.go` of Go 1.24.
    ///
    /// # Errors
    /// If the text is not of the form `2026-01-31T12:00:00Z`, with fractions of a second and offsets allowed.
    pub fn parse(text: &str) -> Result<Self, TimeError> {
        Self::read(text.as_bytes()).ok_or_else(|| TimeError {
            text: text.to_owned(),
        })
    }

    fn read(text: &[u8]) -> Option<Self> {
        let (year, text) = number(text, 4, 9999)?;
        let (month, text) = number(text.strip_prefix(b"-")?, 2, 12)?;
        let (day, text) = number(text.strip_prefix(b"-")?, 2, 31)?;
        if month < 1 || day < 1 || day > days_in(year, month) {
            return None;
        }
        let text = text.strip_prefix(b"T")?;
        let hour_digits = if matches!(text, [_, b':', ..]) { 1 } else { 2 };
        let (hour, text) = number(text, hour_digits, 23)?;
        let (minute, text) = number(text.strip_prefix(b":")?, 2, 59)?;
        let (second, text) = number(text.strip_prefix(b":")?, 2, 59)?;
        let (nanos, text) = fraction(text);
        let offset = match text {
            b"Z" => 0,
            [sign @ (b'+' | b'-'), text @ ..] => {
                let (hours, text) = number(text, 2, 24)?;
                let (minutes, text) = number(text.strip_prefix(b":")?, 2, 60)?;
                if !text.is_empty() {
                    return None;
                }
                (hours * 3600 + minutes * 60) * if *sign == b'-' { -1 } else { 1 }
            }
            _ => return None,
        };
        let clock = hour * 3600 + minute * 60 + second;
        Some(Self {
            seconds: days_of(year, month, day) * DAY_SECONDS + clock - offset,
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
    }

    /// Both ways are Go's: `time.Parse(time.RFC3339, text)`.
    #[test]
    fn what_go_takes_is_a_time_and_nothing_else() {
        for (text, wanted) in [
            ("2026-01-01T01:30:00.5+01:30", "2026-01-01T00:00:00.5Z"),
            ("2026-01-01T00:00:00,25Z", "2026-01-01T00:00:00.25Z"),
            (
                "2026-01-01T00:00:00.1234567899Z",
                "2026-01-01T00:00:00.123456789Z",
            ),
            ("2026-01-01T5:00:00Z", "2026-01-01T05:00:00Z"),
            ("2026-01-01T00:00:00-24:60", "2026-01-02T01:00:00Z"),
            ("2024-02-29T00:00:00Z", "2024-02-29T00:00:00Z"),
            ("0000-02-29T00:00:00Z", "0000-02-29T00:00:00Z"),
        ] {
            assert_eq!(Time::parse(text).unwrap().to_string(), wanted, "{text}");
        }
        for bad in [
            "",
            "2026-01-01",
            "2026-13-01T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2026-02-31T00:00:00Z",
            "2026-02-29T00:00:00Z",
            "2100-02-29T00:00:00Z",
            "2026-04-31T00:00:00Z",
            "2026-01-00T00:00:00Z",
            "2026-1-01T00:00:00Z",
            "+026-01-01T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:60:00Z",
            "2026-06-30T23:59:60Z",
            "2026-01-01T00:00:00",
            "2026-01-01T00:00:00.Z",
            "2026-01-01T00:00:00+-5:00",
            "2026-01-01T00:00:00+05:-1",
            "2026-01-01T00:00:00+99:99",
            "2026-01-01T00:00:00+25:00",
            "2026-01-01T00:00:00+00:61",
            "2026-01-01T00:00:00+0100",
            "2026-01-01T00:00:00+01:00Z",
            "2026-01-01T00:00:00ZZ",
            "2026-01-01t00:00:00Z",
            "2026-01-01T00:00:00z",
            "2026-01-01 00:00:00Z",
            "2026-01-01T00:00:00\u{e9}",
        ] {
            assert!(Time::parse(bad).is_err(), "{bad}");
        }
    }
}
