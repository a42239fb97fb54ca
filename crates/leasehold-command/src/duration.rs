//! Parses and formats durations.

use std::time::Duration;

/// Parses a duration: `5` or `0.5` (seconds), `500ms`, `5s`, `2m`, `1h`, `1d`; zero is allowed.
pub fn parse(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds_each = match unit.trim_start() {
        "" | "s" | "sec" => 1.0,
        "ms" => 0.001,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(format_error()),
    };
    let number: f64 = number.parse().map_err(|_| format_error())?;
    Duration::try_from_secs_f64(number * seconds_each)
        .map_err(|_| "the duration is longer than a clock can count".to_owned())
}

/// The error for text that is no duration, with the forms that are.
fn format_error() -> String {
    "a duration is seconds (`5`, `0.5`) or a number with its unit (`500ms`, `5s`, `2m`, `1h`, `1d`)".to_owned()
}

/// Parses a duration as [`parse`] does, and refuses zero.
pub fn parse_positive(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        Duration::ZERO => Err("the duration must be longer than zero".to_owned()),
        duration => Ok(duration),
    }
}

/// Formats a duration for people, with at most two units: `80us`, `12ms`, `1.2s`, `3m 4s`, `2h 5m`,
/// `3d 4h`. Rounds down.
pub fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 if duration.as_millis() == 0 => format!("{}us", duration.as_micros()),
        0 => format!("{}ms", duration.as_millis()),
        1..10 => format!("{:.1}s", duration.as_secs_f64()),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_seconds_and_units() {
        for (text, millis) in [
            ("5", 5000),
            ("0.5", 500),
            (".25", 250),
            ("500ms", 500),
            ("5s", 5000),
            ("1.5m", 90_000),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("1d", 86_400_000),
            ("0", 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn other_text_is_refused_with_the_expected_format() {
        for text in ["", "soon", "-5", "5 parsecs", "1e9", "nan", "inf", "1.2.3", ".", "5ss", "٣s"] {
            assert!(parse(text).unwrap_err().contains("a duration is seconds"), "{text}");
        }
        assert!(parse(&"9".repeat(40)).unwrap_err().contains("longer than"));
        assert!(parse_positive("0").is_err());
    }

    #[test]
    fn durations_are_shown_with_at_most_two_units() {
        for (millis, text) in [
            (0, "0us"),
            (12, "12ms"),
            (1200, "1.2s"),
            (42_000, "42s"),
            (184_000, "3m 4s"),
            (7_500_000, "2h 5m"),
            (273_600_000, "3d 4h"),
        ] {
            assert_eq!(format_duration(Duration::from_millis(millis)), text);
        }
    }
}
