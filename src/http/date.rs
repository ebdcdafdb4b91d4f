//! The date of an answer, as RFC 9110 section 5.6.7 wants it: `Sun, 06 Nov 1994 08:49:37 GMT`.
//!
//! Must not know: the clock.

/// Bytes of a date.
pub const LENGTH: usize = 29;

const DAYS: [&[u8; 3]; 7] = [b"Thu", b"Fri", b"Sat", b"Sun", b"Mon", b"Tue", b"Wed"];
const MONTHS: [&[u8; 3]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];

/// The date of this unix time, in seconds; right for the years 1970 to 9999.
pub fn of(unix_s: u64) -> [u8; LENGTH] {
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    let (year, month, day) = civil(days);
    let mut text = *b"Thu, 01 Jan 1970 00:00:00 GMT";
    text[..3].copy_from_slice(DAYS[(days % 7) as usize]);
    two_digits(&mut text[5..7], day);
    text[8..11].copy_from_slice(MONTHS[month as usize - 1]);
    two_digits(&mut text[12..14], year / 100);
    two_digits(&mut text[14..16], year % 100);
    two_digits(&mut text[17..19], second / 3600);
    two_digits(&mut text[20..22], second / 60 % 60);
    two_digits(&mut text[23..25], second % 60);
    text
}

fn two_digits(into: &mut [u8], number: u64) {
    into[0] = b'0' + (number / 10 % 10) as u8;
    into[1] = b'0' + (number % 10) as u8;
}

/// Year, month and day of a day since 1970-01-01 (Howard Hinnant, `civil_from_days`).
fn civil(days: u64) -> (u64, u64, u64) {
    let from_march = days + 719_468;
    let (era, day_of_era) = (from_march / 146_097, from_march % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    #[test]
    fn dates_are_those_of_the_calendar() {
        for (unix_s, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_399, "Mon, 28 Feb 2000 23:59:59 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (951_868_800, "Wed, 01 Mar 2000 00:00:00 GMT"),
            (1_735_689_599, "Tue, 31 Dec 2024 23:59:59 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
        ] {
            assert_eq!(std::str::from_utf8(&super::of(unix_s)), Ok(text), "{unix_s}");
        }
    }
}
