//! The login phase, request by request.

use super::*;

use proptest::prelude::*;

/// One target, `iqn.t`, with or without CHAP; initiator `iqn.evil` is not let in.
struct World {
    authentication: Authentication,
}

impl Directory for World {
    fn has_chap(&self) -> bool {
        self.initiator().is_some()
    }

    fn credentials_of(&self, user: &str) -> Vec<ChapCredentials> {
        let known = self.initiator().filter(|known| known.user == user);
        known.cloned().into_iter().collect()
    }

    fn find_target(
        &self,
        iqn: &str,
        initiator: &str,
    ) -> Result<(Authentication, Option<String>), LoginStatus> {
        match (iqn, initiator) {
            ("iqn.t", "iqn.evil") => Err(LoginStatus::AuthorizationFailure),
            ("iqn.t", _) => Ok((self.authentication.clone(), Some("alias".into()))),
            _ => Err(LoginStatus::NotFound),
        }
    }

    fn has_session(&self, tsih: u16) -> bool {
        tsih == 7
    }

    fn connections_max(&self) -> u16 {
        4
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = at as u8 + 1;
        }
    }
}

impl World {
    fn initiator(&self) -> Option<&ChapCredentials> {
        match &self.authentication {
            Authentication::None => None,
            Authentication::Chap { initiator, .. } => Some(initiator),
        }
    }
}

fn open() -> World {
    World {
        authentication: Authentication::None,
    }
}

fn with_chap() -> World {
    let credentials = |user: &str, secret: &str| ChapCredentials {
        user: user.into(),
        secret: secret.into(),
    };
    World {
        authentication: Authentication::Chap {
            initiator: credentials("alice", "alicesecret12"),
            target: Some(credentials("target", "targetsecret1")),
        },
    }
}

/// A login request: flags byte, keys separated by spaces.
fn request(flags: u8, keys: &str) -> (Header, Vec<u8>) {
    let mut header = Header::new(0x43);
    header.0[1] = flags;
    header.0[8..14].copy_from_slice(&[0, 2, 0x3d, 0, 0, 1]);
    header.set_initiator_task_tag(5);
    header.set_u32(24, 100);
    header.set_u32(28, 7);
    let mut text = Vec::new();
    for key in keys.split(' ').filter(|key| !key.is_empty()) {
        text.extend_from_slice(key.as_bytes());
        text.push(0);
    }
    (header, text)
}

const WHO: &str = "InitiatorName=iqn.i TargetName=iqn.t ";
const SECURITY: u8 = 0x00;
const SECURITY_TO_OPERATIONAL: u8 = 0x81;
const SECURITY_TO_FULL: u8 = 0x83;
const OPERATIONAL: u8 = 0x04;
const OPERATIONAL_TO_FULL: u8 = 0x87;

fn send(login: &mut Login, world: &World, flags: u8, keys: &str) -> Step {
    let (header, text) = request(flags, keys);
    login.request(&header, &text, world)
}

/// Flags and text of a reply that does not end the login.
fn reply(step: Step) -> (u8, String) {
    match step {
        Step::Reply(header, text) => {
            assert_eq!(header.u16_at(36), 0);
            let text = String::from_utf8(text).unwrap();
            (header.flags(), text.replace('\0', " ").trim_end().into())
        }
        other => panic!("{other:?}"),
    }
}

fn status(step: Step) -> LoginStatus {
    match step {
        Step::Refuse(header, status) => {
            assert_eq!(header.u16_at(36), status as u16);
            assert_eq!(header.flags(), 0);
            status
        }
        other => panic!("{other:?}"),
    }
}

fn established(step: Step) -> (Established, String) {
    match step {
        Step::Establish(established, header, text) => {
            assert_eq!(header.flags() & 0x83, 0x83);
            let text = String::from_utf8(text).unwrap();
            (*established, text.replace('\0', " ").trim_end().into())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn open_target_is_entered_as_linux_does_it() {
    let (mut login, world) = (Login::new(), open());
    let keys = format!("{WHO}SessionType=Normal AuthMethod=None");
    assert_eq!(
        reply(send(&mut login, &world, SECURITY_TO_OPERATIONAL, &keys)),
        (
            0x81,
            "TargetPortalGroupTag=1 TargetAlias=alias AuthMethod=None".into()
        )
    );
    let keys = "HeaderDigest=CRC32C,None ImmediateData=Yes MaxBurstLength=1024 \
                FirstBurstLength=65536 MaxRecvDataSegmentLength=4096 X-com.example=1";
    let (established, text) = established(send(&mut login, &world, OPERATIONAL_TO_FULL, keys));
    assert_eq!(
        text,
        "HeaderDigest=CRC32C ImmediateData=Yes MaxBurstLength=1024 FirstBurstLength=65536 \
         X-com.example=NotUnderstood MaxRecvDataSegmentLength=262144"
    );
    assert_eq!(established.initiator, "iqn.i");
    assert_eq!(established.isid, [0, 2, 0x3d, 0, 0, 1]);
    let kind = SessionKind::Normal {
        iqn: "iqn.t".into(),
    };
    assert_eq!(established.kind, kind);
    assert_eq!(established.cmd_sn, 100);
    assert_eq!(established.stat_sn, 9);
    let parameters = established.parameters;
    assert!(parameters.has_header_digest && !parameters.has_data_digest);
    assert_eq!(parameters.send_data_bytes_max, 4096);
    // The first burst is within the burst.
    assert_eq!(parameters.first_burst_bytes_max, 1024);
}

#[test]
fn security_may_be_skipped_only_where_none_is_wanted() {
    let send_to = |world: &World, flags| send(&mut Login::new(), world, flags, WHO);
    established(send_to(&open(), OPERATIONAL_TO_FULL));
    established(send_to(&open(), SECURITY_TO_FULL));
    assert_eq!(
        status(send_to(&with_chap(), OPERATIONAL_TO_FULL)),
        LoginStatus::AuthenticationFailure
    );
    // Asking to move on before CHAP is done is not granted, but no error.
    let (flags, _) = reply(send_to(&with_chap(), SECURITY_TO_FULL));
    assert_eq!(flags, 0);
}

/// Every way to be refused with the first request.
#[test]
fn first_requests_are_refused_as_the_table_says() {
    let table = [
        (WHO.replace("iqn.t", "iqn.x"), LoginStatus::NotFound),
        (
            WHO.replace("iqn.i", "iqn.evil"),
            LoginStatus::AuthorizationFailure,
        ),
        ("TargetName=iqn.t".into(), LoginStatus::MissingParameter),
        ("InitiatorName=iqn.i".into(), LoginStatus::MissingParameter),
        (
            "InitiatorName= TargetName=iqn.t".into(),
            LoginStatus::InitiatorError,
        ),
        (
            format!("{WHO}SessionType=Odd"),
            LoginStatus::SessionTypeNotSupported,
        ),
        (
            format!("{WHO}AuthMethod=KRB5"),
            LoginStatus::AuthenticationFailure,
        ),
        (format!("{WHO}{WHO}"), LoginStatus::InitiatorError),
        ("garbage".into(), LoginStatus::InitiatorError),
        (
            format!("{WHO}MaxRecvDataSegmentLength=1"),
            LoginStatus::InitiatorError,
        ),
    ];
    for (keys, expected) in table {
        let step = send(&mut Login::new(), &open(), SECURITY_TO_OPERATIONAL, &keys);
        assert_eq!(status(step), expected, "{keys}");
    }
}

#[test]
fn headers_are_checked() {
    let refused = |change: &dyn Fn(&mut Header)| {
        let (mut header, text) = request(SECURITY_TO_OPERATIONAL, WHO);
        change(&mut header);
        status(Login::new().request(&header, &text, &open()))
    };
    assert_eq!(refused(&|h| h.0[0] = 0x01), LoginStatus::InvalidDuringLogin);
    assert_eq!(refused(&|h| h.0[3] = 1), LoginStatus::UnsupportedVersion);
    assert_eq!(
        refused(&|h| h.set_u16(14, 8)),
        LoginStatus::SessionDoesNotExist
    );
    // Transit and continue at once; stages that do not exist; stages that go back.
    for flags in [0xc1, 0x88, 0x8c, 0x82, 0x80, 0x84, 0x85, 0x86] {
        assert_eq!(
            refused(&|h| h.0[1] = flags),
            LoginStatus::InitiatorError,
            "{flags:#x}"
        );
    }
}

/// The whole stage-by-request matrix after a first request: stage now, CSG, T and NSG.
#[test]
fn stages_move_as_the_table_says() {
    for (first, stage) in [(SECURITY, 0), (SECURITY_TO_OPERATIONAL, 1)] {
        for flags in 0..=255u8 {
            if flags & 0x40 != 0 {
                continue;
            }
            let (mut login, world) = (Login::new(), open());
            let (flags_back, _) = reply(send(&mut login, &world, first, WHO));
            assert_eq!(flags_back, first);
            let (csg, nsg) = ((flags >> 2) & 3, flags & 3);
            let is_transit = flags & 0x80 != 0;
            let outcome = match send(&mut login, &world, flags, "") {
                Step::Reply(header, _) => header.flags() & 0x80,
                Step::Establish(..) => 1,
                Step::Refuse(..) => 2,
            };
            let expected = match (stage, csg, is_transit, nsg) {
                (0, 0, false, _) | (1, 1, false, _) => 0,
                (0, 0, true, 1) => 0x80,
                (0, 0, true, 3) | (1, 1, true, 3) => 1,
                _ => 2,
            };
            assert_eq!(outcome, expected, "stage {stage}, flags {flags:#x}");
        }
    }
}

/// Runs CHAP up to the challenge.
fn challenged(login: &mut Login, world: &World) {
    let keys = format!("{WHO}AuthMethod=CHAP,None");
    let (flags, text) = reply(send(login, world, SECURITY_TO_OPERATIONAL, &keys));
    assert_eq!(flags, 0);
    assert!(text.ends_with("AuthMethod=CHAP"));
    let (_, text) = reply(send(login, world, SECURITY, "CHAP_A=5"));
    assert_eq!(
        text,
        "CHAP_A=5 CHAP_I=1 CHAP_C=0x02030405060708090a0b0c0d0e0f1011"
    );
}

fn right_response() -> String {
    let challenge: Vec<u8> = (2..=17).collect();
    let response = Algorithm::Md5.response(1, b"alicesecret12", &challenge);
    text::to_hex(&response)
}

#[test]
fn chap_lets_in_who_knows_the_secret() {
    let (mut login, world) = (Login::new(), with_chap());
    challenged(&mut login, &world);
    let keys = format!(
        "CHAP_N=alice CHAP_R={} CHAP_I=9 CHAP_C=0xaabbccdd",
        right_response()
    );
    let (flags, text) = reply(send(&mut login, &world, SECURITY_TO_OPERATIONAL, &keys));
    assert_eq!(flags, 0x81);
    let answer = Algorithm::Md5.response(9, b"targetsecret1", &[0xaa, 0xbb, 0xcc, 0xdd]);
    assert_eq!(
        text,
        format!("CHAP_N=target CHAP_R={}", text::to_hex(&answer))
    );
    established(send(&mut login, &world, OPERATIONAL_TO_FULL, ""));
}

#[test]
fn chap_keeps_out_who_does_not() {
    let right = right_response();
    let wrong = right.replace(|c: char| c == right.chars().last().unwrap(), "0");
    let table = [
        format!("CHAP_N=alice CHAP_R={wrong}"),
        format!("CHAP_N=bob CHAP_R={right}"),
        "CHAP_N=alice CHAP_R=0x".into(),
        "CHAP_N=alice CHAP_R=nonsense".into(),
        format!("CHAP_R={right}"),
        String::new(),
        // Our own challenge sent back, and half a challenge.
        format!("CHAP_N=alice CHAP_R={right} CHAP_I=1 CHAP_C=0x02030405060708090a0b0c0d0e0f1011"),
        format!("CHAP_N=alice CHAP_R={right} CHAP_I=1"),
        format!("CHAP_N=alice CHAP_R={right} CHAP_I=256 CHAP_C=0x01"),
    ];
    for keys in table {
        let (mut login, world) = (Login::new(), with_chap());
        challenged(&mut login, &world);
        let step = send(&mut login, &world, SECURITY_TO_OPERATIONAL, &keys);
        assert_eq!(status(step), LoginStatus::AuthenticationFailure, "{keys}");
    }
    // None offered, no algorithm in common, and walking around it.
    let (mut login, world) = (Login::new(), with_chap());
    let keys = format!("{WHO}AuthMethod=None");
    let step = send(&mut login, &world, SECURITY_TO_OPERATIONAL, &keys);
    assert_eq!(status(step), LoginStatus::AuthenticationFailure);
    let mut login = Login::new();
    reply(send(
        &mut login,
        &world,
        SECURITY,
        &format!("{WHO}AuthMethod=CHAP"),
    ));
    let step = send(&mut login, &world, SECURITY, "CHAP_A=6");
    assert_eq!(status(step), LoginStatus::AuthenticationFailure);
    let mut login = Login::new();
    challenged(&mut login, &world);
    let step = send(&mut login, &world, OPERATIONAL_TO_FULL, "");
    assert_eq!(status(step), LoginStatus::InitiatorError);
}

#[test]
fn text_may_be_continued() {
    let (mut login, world) = (Login::new(), open());
    let (mut header, _) = request(0x40, "");
    assert_eq!(
        reply(login.request(&header, b"InitiatorName=iq", &world)).1,
        ""
    );
    header.0[1] = OPERATIONAL;
    // The stage cannot change in the middle of a text.
    let mut other = Login::new();
    reply(other.request(&request(0x40, "").0, b"x", &world));
    assert_eq!(
        status(other.request(&header, b"=1\0", &world)),
        LoginStatus::InitiatorError
    );
    header.0[1] = SECURITY_TO_FULL;
    established(login.request(&header, b"n.i\0TargetName=iqn.t\0", &world));
    // Without end it may not be.
    let mut login = Login::new();
    let (header, _) = request(0x40, "");
    let piece = [b'a'; 8192];
    let step = (0..).map(|_| login.request(&header, &piece, &world));
    let refused = step.take(100).find(|step| matches!(step, Step::Refuse(..)));
    assert_eq!(status(refused.unwrap()), LoginStatus::InitiatorError);
}

#[test]
fn discovery_needs_no_target() {
    let keys = "InitiatorName=iqn.i SessionType=Discovery MaxBurstLength=65536";
    let (established, text) =
        established(send(&mut Login::new(), &open(), OPERATIONAL_TO_FULL, keys));
    assert_eq!(established.kind, SessionKind::Discovery);
    assert_eq!(
        text,
        "MaxBurstLength=Irrelevant MaxRecvDataSegmentLength=262144"
    );
}

/// Goal: a discovery session may prove what it knows, and is told apart from one that does not.
#[test]
fn discovery_may_authenticate_with_the_credentials_of_a_target() {
    let who = "InitiatorName=iqn.i SessionType=Discovery ";
    let (mut login, world) = (Login::new(), with_chap());
    let keys = format!("{who}AuthMethod=CHAP,None");
    let (flags, text) = reply(send(&mut login, &world, SECURITY_TO_OPERATIONAL, &keys));
    assert_eq!((flags, text.as_str()), (0, "AuthMethod=CHAP"));
    reply(send(&mut login, &world, SECURITY, "CHAP_A=5"));
    let keys = format!("CHAP_N=alice CHAP_R={}", right_response());
    let step = send(&mut login, &world, SECURITY_TO_FULL, &keys);
    assert_eq!(established(step).0.proven.as_ref(), with_chap().initiator());
    // A wrong answer is not taken for none, nor a name that nobody has.
    for name in ["alice", "bob"] {
        let mut login = Login::new();
        let keys = format!("{who}AuthMethod=CHAP");
        reply(send(&mut login, &world, SECURITY_TO_OPERATIONAL, &keys));
        reply(send(&mut login, &world, SECURITY, "CHAP_A=5"));
        let keys = format!("CHAP_N={name} CHAP_R=0x00112233445566778899aabbccddeeff");
        let step = send(&mut login, &world, SECURITY_TO_FULL, &keys);
        assert_eq!(status(step), LoginStatus::AuthenticationFailure);
    }
    // Who does not authenticate has proven nothing; where no target wants CHAP, nobody is asked.
    let keys = format!("{who}AuthMethod=None");
    let step = send(&mut Login::new(), &world, SECURITY_TO_FULL, &keys);
    assert_eq!(established(step).0.proven, None);
    let keys = format!("{who}AuthMethod=CHAP,None");
    let (established, text) =
        established(send(&mut Login::new(), &open(), SECURITY_TO_FULL, &keys));
    assert_eq!(
        (established.proven, text.as_str()),
        (None, "AuthMethod=None")
    );
}

proptest! {
    /// No sequence of requests panics, or gets past CHAP without the secret.
    #[test]
    fn hostile_logins_do_not_get_in(
        requests in proptest::collection::vec(
            (any::<u8>(), proptest::collection::vec(0..12usize, 0..5)),
            1..12,
        ),
    ) {
        const KEYS: [&str; 12] = [
            "InitiatorName=iqn.i", "TargetName=iqn.t", "SessionType=Normal", "AuthMethod=CHAP",
            "AuthMethod=None", "CHAP_A=5,7", "CHAP_N=alice",
            "CHAP_R=0x00112233445566778899aabbccddeeff", "CHAP_I=1", "CHAP_C=0x0102",
            "HeaderDigest=None", "\u{e9}=\u{e9}",
        ];
        let (mut login, world) = (Login::new(), with_chap());
        for (flags, keys) in requests {
            let keys: Vec<&str> = keys.into_iter().map(|key| KEYS[key]).collect();
            match send(&mut login, &world, flags, &keys.join(" ")) {
                Step::Establish(..) => prop_assert!(false, "let in"),
                Step::Refuse(..) => break,
                Step::Reply(..) => {}
            }
        }
    }
}
