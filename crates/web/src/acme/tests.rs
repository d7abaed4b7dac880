//! Goal: a certificate is asked for when it is time, for names that make sense, and what was got
//! is used again after a restart. Method: numbers for [`due_s`]; files of a state directory. How
//! one is got is tested with a real authority's program (test `certificate` of crate `cli`).

use rcgen::{CertificateParams, KeyPair};

use super::*;

fn settings(names: &[&str]) -> AcmeSettings {
    AcmeSettings {
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        ..AcmeSettings::default()
    }
}

#[test]
fn one_is_due_at_two_thirds_of_its_time_and_tried_ever_later() {
    const DAY_S: u64 = 24 * 3600;
    let of = |days: u64| {
        let validity = Validity {
            begin_s: 1000 * DAY_S,
            end_s: (1000 + days) * DAY_S,
        };
        move |failures, failed_s| due_s(Some(validity), failures, failed_s)
    };
    assert_eq!(of(90)(0, 0), 1060 * DAY_S);
    assert_eq!(of(6)(0, 0), 1004 * DAY_S);
    let tries = |failures| of(90)(failures, 1060 * DAY_S) - 1060 * DAY_S;
    assert_eq!([1, 2, 3, 8].map(tries), [300, 600, 1200, 12 * 3600 / 9 * 8]);
    assert_eq!([9, 40, u32::MAX].map(tries), [12 * 3600; 3]);
    // Of a day's there are eight hours left then: an hour is the longest pause.
    let tries = |failures| of(1)(failures, 1001 * DAY_S) - 1001 * DAY_S;
    assert_eq!([1, 20].map(tries), [300, 3600]);
    // One that failed by hand, long before, is not tried sooner.
    assert_eq!(of(90)(1, 1001 * DAY_S), 1060 * DAY_S);
    // There is none yet.
    assert_eq!(due_s(None, 0, 0), 0);
    assert_eq!(due_s(None, 1, 7000), 7300);
    assert_eq!(due_s(None, 50, 7000), 7000 + 12 * 3600);
}

#[test]
fn settings_that_make_no_sense_are_refused_and_change_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let acme = Acme::load(directory.path());
    assert_eq!(acme.settings().unwrap(), None);
    acme.set(Some(settings(&["NAS.example.org.", "nas.example.org"])))
        .unwrap();
    let kept = acme.settings().unwrap().unwrap();
    assert_eq!(kept.names, ["nas.example.org"]);
    assert_eq!(acme.progress().next_s, Some(0), "at once");
    let change = |change: &dyn Fn(&mut AcmeSettings)| {
        let mut settings = kept.clone();
        change(&mut settings);
        settings
    };
    let long = format!("{}.org", "a".repeat(64));
    for bad in [
        settings(&[]),
        settings(&["*.example.org"]),
        settings(&["a..b"]),
        settings(&["-a.org"]),
        settings(&["a b.org"]),
        settings(&["näs.example.org"]),
        settings(&[&long]),
        change(&|s| s.names = (0..101).map(|n| format!("n{n}.org")).collect()),
        change(&|s| s.contact = Some("nobody".into())),
        change(&|s| s.contact = Some("a@b\r\nc".into())),
        change(&|s| s.directory = Some("http://a.org/dir".into())),
        change(&|s| s.ca_file = Some("ca.pem".into())),
        change(&|s| s.listen = Some("80".into())),
    ] {
        let failure = acme.set(Some(bad.clone())).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Invalid, "{bad:?}");
    }
    assert_eq!(acme.settings().unwrap().as_ref(), Some(&kept));
    let again = Acme::load(directory.path());
    assert_eq!(again.settings().unwrap(), Some(kept));
    let full = AcmeSettings {
        names: vec!["a.org".into(), "192.0.2.7".into(), "2001:db8::1".into()],
        contact: Some("ann@example.org".into()),
        directory: Some("https://ca.example/acme/directory".into()),
        ca_file: Some("/etc/ca.pem".into()),
        listen: Some("127.0.0.1:5002".into()),
    };
    acme.set(Some(full.clone())).unwrap();
    assert_eq!(acme.settings().unwrap(), Some(full));
    acme.set(None).unwrap();
    assert_eq!(Acme::load(directory.path()).settings().unwrap(), None);
    assert_eq!(acme.progress().next_s, None);
    // One that is not understood is left alone, and nothing is got.
    std::fs::write(directory.path().join("certificate.json"), "{").unwrap();
    let damaged = Acme::load(directory.path());
    assert!(damaged.settings().is_err() && damaged.progress().next_s.is_none());
}

/// What an authority gave for these names.
fn got(names: &[&str]) -> Got {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let key = KeyPair::generate().unwrap();
    let mut parameters = CertificateParams::new(names.clone()).unwrap();
    let now = std::time::SystemTime::now();
    parameters.not_before = (now - Duration::from_secs(3600)).into();
    parameters.not_after = (now + Duration::from_secs(90 * 24 * 3600)).into();
    Got {
        directory: api::ACME_DIRECTORY.to_owned(),
        names,
        chain: parameters.self_signed(&key).unwrap().pem(),
        key: api::Secret(key.serialize_pem()),
    }
}

fn names_shown(certificate: &Certificate) -> Vec<String> {
    certificate.report().unwrap().names
}

#[test]
fn what_was_got_is_used_again_until_another_one_is_wanted() {
    let directory = tempfile::tempdir().unwrap();
    let own = || {
        let address = [127, 0, 0, 1].into();
        Certificate::load(directory.path(), None, "host", address).unwrap()
    };
    let acme = Acme::load(directory.path());
    let wanted = settings(&["nas.example.org"]);
    acme.set(Some(wanted.clone())).unwrap();
    let certificate = own();
    acme.show(&certificate);
    assert!(names_shown(&certificate).contains(&"localhost".to_owned()));
    let first = got(&["nas.example.org"]);
    acme.take(&wanted, first.clone(), &certificate).unwrap();
    assert_eq!(names_shown(&certificate), ["nas.example.org"]);
    let is_later = |acme: &Acme| acme.progress().next_s.unwrap() > now_s() + 24 * 3600;
    assert!(is_later(&acme));

    let again = Acme::load(directory.path());
    let certificate = own();
    again.show(&certificate);
    assert_eq!(names_shown(&certificate), ["nas.example.org"]);
    assert!(is_later(&again));

    // Another one is wanted: this one stays until that is there.
    again.set(Some(settings(&["other.example.org"]))).unwrap();
    again.show(&certificate);
    assert_eq!(again.progress().next_s, Some(0));
    assert_eq!(names_shown(&certificate), ["nas.example.org"]);
    // What comes of the old settings is not taken.
    again
        .take(&wanted, got(&["nas.example.org"]), &certificate)
        .unwrap();
    assert_eq!(again.state.lock().chain().as_ref(), Some(&first.chain));
    // From elsewhere is another one, too.
    let elsewhere = AcmeSettings {
        directory: Some("https://ca.example/".into()),
        ..wanted.clone()
    };
    again.set(Some(elsewhere)).unwrap();
    assert_eq!(again.progress().next_s, Some(0));
    again.set(None).unwrap();
    again.show(&certificate);
    assert!(names_shown(&certificate).contains(&"localhost".to_owned()));

    // What is no certificate changes nothing.
    again.set(Some(wanted.clone())).unwrap();
    again.show(&certificate);
    let halves = Got {
        key: got(&["nas.example.org"]).key,
        ..first
    };
    assert!(again.take(&wanted, halves, &certificate).is_err());
    assert_eq!(names_shown(&certificate), ["nas.example.org"]);
    let path = directory.path().join("acme-certificate.json");
    std::fs::write(&path, "{}").unwrap();
    let damaged = Acme::load(directory.path());
    assert_eq!(damaged.progress().next_s, Some(0));
}

#[tokio::test]
async fn failures_are_told_and_leave_what_there_is() {
    let directory = tempfile::tempdir().unwrap();
    let address = [127, 0, 0, 1].into();
    let certificate = Certificate::load(directory.path(), None, "host", address).unwrap();
    let acme = Acme::load(directory.path());
    let why = acme.get(&certificate, false).await.unwrap_err();
    assert!(why.contains("millpond certificate acme"), "{why}");
    // Nobody listens at port 1.
    let nowhere = AcmeSettings {
        directory: Some("https://127.0.0.1:1/dir".into()),
        ..settings(&["nas.example.org"])
    };
    acme.set(Some(nowhere.clone())).unwrap();
    for failures in 1..=2 {
        assert_eq!(acme.alert().is_some(), failures > 2);
        let why = acme.get(&certificate, false).await.unwrap_err();
        assert!(why.contains("https://127.0.0.1:1/dir"), "{why}");
        let progress = acme.progress();
        assert_eq!((progress.failures, progress.is_working), (failures, false));
        assert_eq!(progress.problem, Some(why));
    }
    let alert = acme.alert().unwrap();
    assert!(matches!(alert.fact, AlertFact::CertificateNotGot { .. }));
    // It is not due, and what went wrong is told.
    assert!(acme.get(&certificate, true).await.is_err());
    assert_eq!(acme.progress().failures, 2);
    assert!(names_shown(&certificate).contains(&"localhost".to_owned()));
    // What is set anew begins anew.
    acme.set(Some(nowhere)).unwrap();
    assert_eq!((acme.alert(), acme.progress().next_s), (None, Some(0)));
    let missing = AcmeSettings {
        ca_file: Some("/nonexistent/ca.pem".into()),
        ..settings(&["nas.example.org"])
    };
    acme.set(Some(missing)).unwrap();
    let why = acme.get(&certificate, false).await.unwrap_err();
    assert!(why.contains("/nonexistent/ca.pem"), "{why}");
}
