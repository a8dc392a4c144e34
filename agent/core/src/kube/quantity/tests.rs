use proptest::prelude::*;

use super::*;

fn quantity(text: &str) -> Quantity {
    Quantity::parse(text).unwrap()
}

#[test]
fn prints_canonical_form() {
    for (text, canonical) in [
        ("0.1", "100m"),
        ("1.5Gi", "1536Mi"),
        ("1024", "1024"),
        ("1024Ki", "1Mi"),
        ("0.5Ki", "512"),
        ("1000", "1k"),
        ("1e3", "1e3"),
        ("0.1n", "1n"),
        ("-0.1n", "-1n"),
        ("12e4", "120e3"),
        // No suffix above E: upstream would print "1" for this.
        ("1000E", "1000E"),
    ] {
        assert_eq!(quantity(text).canonical(), canonical, "{text}");
    }
}

#[test]
fn reuses_the_text_only_where_upstream_does() {
    for (text, printed) in [
        ("+5", "+5"),
        ("1E3", "1E3"),
        ("326.Gi", "326.Gi"),
        ("8Ki", "8Ki"),
        ("1.0", "1"),
        ("05", "05"),
    ] {
        assert_eq!(quantity(text).to_string(), printed, "{text}");
    }
}

#[test]
fn rounds_away_from_zero_and_saturates() {
    assert_eq!(quantity("1m").value(), 1);
    assert_eq!(quantity("-1m").value(), -1);
    assert_eq!(quantity("1u").milli_value(), 1);
    assert_eq!(quantity("99999999999999M").value(), i64::MAX);
    assert_eq!(quantity("-99999999999999M").value(), i64::MIN);
    assert_eq!(
        quantity("9999E").nanos(),
        9_999_000_000_000_000_000_000_000_000_000
    );
    assert_eq!(quantity("1e999").nanos(), i128::MAX);
}

#[test]
fn rounds_to_a_unit() {
    for (text, rounded) in [
        ("1500u", "2m"),
        ("-1500u", "-2m"),
        ("5", "5"),
        ("1e3", "1e3"),
        ("12345678901234567890.1u", "12345678901234568m"),
    ] {
        let mut quantity = quantity(text);
        quantity.round_up(-3);
        assert_eq!(quantity.to_string(), rounded, "{text}");
    }
}

#[test]
fn names_what_is_wrong() {
    let malformed = |text: &str| QuantityError::Malformed {
        text: text.to_owned(),
    };
    for text in ["", " 1", "1 Gi", "1.2.3", "1e1.5", "١"] {
        assert_eq!(Quantity::parse(text), Err(malformed(text)));
    }
    for text in ["1K", "1ki", "--1", "1e", "5e+"] {
        assert_eq!(
            Quantity::parse(text),
            Err(QuantityError::UnknownSuffix {
                text: text.to_owned()
            })
        );
    }
    assert_eq!(
        Quantity::parse(".e-10"),
        Err(QuantityError::NoDigits {
            text: ".e-10".to_owned()
        })
    );
    assert_eq!(Quantity::parse("1e10001"), Err(QuantityError::TooLarge));
    assert_eq!(
        Quantity::parse(&"1".repeat(MAX_TEXT_BYTES + 1)),
        Err(QuantityError::TooLarge)
    );
    assert_eq!(quantity("1e-2000000000").canonical(), "1e-9");
}

#[test]
fn zero_is_a_whole_number_at_any_exponent() {
    for text in ["0", "0E21", "-0e0020", ".0E0030"] {
        assert_eq!(quantity(text).as_i64(), Some(0), "{text}");
    }
}

/// The answers are those of `ParseQuantity` of 1.36.2.
#[test]
fn zero_may_have_any_exponent() {
    for (text, is_big) in [
        ("0e99999", false),
        ("0e10001", false),
        ("0e-99999", true),
        ("0.00000000000000000000e20000", true),
    ] {
        let zero = quantity(text);
        assert!(zero.is_zero() && zero == Quantity::default(), "{text}");
        assert_eq!((zero.to_string(), zero.is_big()), ("0".to_owned(), is_big));
        assert_eq!(zero.format(), Format::DecimalExponent);
    }
    // Zero times infinity.
    assert!(quantity("0e99999").approximate_f64().is_nan());
    assert_eq!(quantity("1e-20000").canonical(), "1e-9");
    let mut sum = quantity("0e99999");
    sum += &quantity("1.5");
    assert_eq!(sum.to_string(), "1500m");
}

#[test]
fn zero_takes_the_format_of_what_is_added() {
    let mut sum = Quantity::default();
    sum += &quantity("1Gi");
    assert_eq!(sum.to_string(), "1Gi");
    sum += &quantity("1k");
    assert_eq!(sum.to_string(), "1073742824");
}

#[test]
fn reads_strings_numbers_and_null() {
    for (json, printed) in [
        ("\"1.5Gi\"", "1536Mi"),
        ("1", "1"),
        ("0.5", "500m"),
        ("1e-7", "100n"),
        ("\" 2 \"", "2"),
        ("null", "0"),
    ] {
        assert_eq!(
            serde_json::from_str::<Quantity>(json).unwrap().to_string(),
            printed,
            "{json}"
        );
    }
    assert!(
        serde_json::from_str::<Quantity>("\"1x\"")
            .unwrap_err()
            .to_string()
            .contains("\"1x\"")
    );
    assert_eq!(
        serde_json::to_string(&quantity("1.50")).unwrap(),
        "\"1500m\""
    );
}

prop_compose! {
    fn any_text()(
        sign in prop_oneof![Just(""), Just("-"), Just("+")],
        whole in "[0-9]{1,25}",
        fraction in "(\\.[0-9]{0,15})?",
        suffix in "(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE]-?[0-9]{1,2})?",
    ) -> String {
        format!("{sign}{whole}{fraction}{suffix}")
    }
}

proptest! {
    #[test]
    fn any_bytes_never_panic(text in ".{0,20}") {
        let _outcome = Quantity::parse(&text);
    }

    #[test]
    fn printed_form_reads_back_as_the_same_value(text in any_text()) {
        let first = quantity(&text);
        for printed in [first.to_string(), first.canonical()] {
            let second = quantity(&printed);
            // A binary quantity below -2⁶³ is the one that upstream caps on reading, at the positive side only.
            prop_assert_eq!(first.cmp(&second), Ordering::Equal, "{} printed as {}", text, printed);
            prop_assert_eq!(second.canonical(), first.canonical());
        }
    }

    #[test]
    fn subtracting_undoes_adding(a in any_text(), b in any_text()) {
        let (first, second) = (quantity(&a), quantity(&b));
        let mut sum = first.clone();
        sum += &second;
        sum -= &second;
        prop_assert_eq!(&sum, &first);
        let mut reversed = second.clone();
        reversed += &first;
        reversed -= &first;
        prop_assert_eq!(reversed, second);
    }

    #[test]
    fn order_agrees_with_the_sign_of_the_difference(a in any_text(), b in any_text()) {
        let (first, second) = (quantity(&a), quantity(&b));
        let mut difference = first.clone();
        difference -= &second;
        prop_assert_eq!(first.cmp(&second) as i32, difference.sign());
    }

    #[test]
    fn scaled_value_is_the_smallest_integer_not_closer_to_zero(mantissa: i64, exponent in -9i32..20) {
        let exact = quantity(&format!("{mantissa}e{exponent}"));
        let value = exact.value();
        if value != i64::MAX && value != i64::MIN {
            let rounded = Quantity::from_value(value, Format::DecimalSI);
            let closer = Quantity::from_value(value - value.signum(), Format::DecimalSI);
            if exact.sign() >= 0 {
                prop_assert!(rounded >= exact && (value == 0 || closer < exact));
            } else {
                prop_assert!(rounded <= exact && closer > exact);
            }
        }
    }
}

#[test]
fn what_needs_no_big_integer_is_written_and_compared_as_with_one() {
    let mantissas = [
        1,
        -5,
        10,
        1000,
        1024,
        1536,
        -(1 << 20),
        1 << 60,
        123_456_789,
        1_000_000_000_000_000_000,
        i64::MAX,
        i64::MIN,
    ];
    let formats = [Format::DecimalExponent, Format::BinarySI, Format::DecimalSI];
    let mut all = Vec::new();
    for mantissa in mantissas {
        for exponent in -9..=24 {
            for format in formats {
                let of = |amount| Quantity {
                    amount,
                    format,
                    text: None,
                };
                let small = of(Amount::Small { mantissa, exponent });
                let big = of(Amount::Big {
                    mantissa: mantissa.into(),
                    exponent,
                });
                assert_eq!(small.canonical(), big.canonical(), "{mantissa}e{exponent}");
                if format == Format::DecimalSI {
                    all.push((small, big));
                }
            }
        }
    }
    for (small, big) in &all {
        for (other, other_big) in &all {
            assert_eq!(small.cmp(other), big.cmp(other_big), "{small} and {other}");
        }
    }
}
