//! The API's description in OpenAPI 3.1, made from the messages themselves: each [`Call`] says its
//! path, its role and whether it is a job, and schemars what is in it and in its reply.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::{
    AlertList, AlertSettingsGet, AlertSettingsSet, AlertTest, ApiKeyList, ApiKeyMake, ApiKeyRemove,
    AuditList, BenchCompare, BenchGet, BenchList, BenchLook, BenchProfiles, BenchProgress,
    BenchRemove, BenchRun, CSRF_HEADER, CacheGet, Call, CertificateRenew, CertificateSet,
    CertificateStatus, ConsoleLink, DiskLightsTest, DiskList, DiskLocate, DiskOverview, DiskPower,
    DiskShow, DiskTest, EVENTS_PATH, Event, EventHistory, FILE_DOWNLOAD_PATH, Failure, FileAccess,
    FileAccessSet, FileList, FileRestore, GroupAdd, GroupChange, GroupRemove, HostBuses, InjectAdd,
    InjectCancel, InjectList, InjectTune, IscsiSecretList, IscsiSecretRemove, IscsiSecretSet, Job,
    JobCancel, JobGet, JobList, JobResult, PeopleList, PersonAdd, PersonPassword, PersonRemove,
    PlanAsk, PlanDedup, PlanLog, ReplicationChange, ReplicationCreate, ReplicationList,
    ReplicationPause, ReplicationRemove, ReplicationRun, ReportGet, ReportList, Role,
    SESSION_COOKIE, STREAM_JOB_HEADER, STREAM_PROTOCOL, ScheduleList, SchedulePause,
    ScheduleRemove, ScheduleRun, ScheduleSet, ServerInfo, ServerMemory, ServerStop, SessionInfo,
    SessionLogin, SessionLogout, SessionPassword, SessionSetup, ShareList, SmbUserAdd, SmbUserList,
    SmbUserPassword, SmbUserRemove, UpsStatus, UserAdd, UserChange, UserList, UserRemove, ZfsAllow,
    ZfsAllowList, ZfsBookmark, ZfsChangeKey, ZfsClone, ZfsCreate, ZfsDestroy, ZfsDiff, ZfsHold,
    ZfsHolds, ZfsInherit, ZfsKeys, ZfsList, ZfsLoadKey, ZfsMount, ZfsMountList, ZfsProgram,
    ZfsProject, ZfsPromote, ZfsReceive, ZfsReceiveAbort, ZfsRedact, ZfsRelease, ZfsRename,
    ZfsRewrite, ZfsRollback, ZfsSend, ZfsSendPlan, ZfsSet, ZfsShare, ZfsSnapshot, ZfsSpace,
    ZfsUnloadKey, ZfsUnmount, ZfsUnshare, ZfsWait, ZpoolAdd, ZpoolAttach, ZpoolCheckpoint,
    ZpoolClear, ZpoolCreate, ZpoolDdtPrune, ZpoolDestroy, ZpoolDetach, ZpoolEvents,
    ZpoolEventsClear, ZpoolExport, ZpoolFreeze, ZpoolHistory, ZpoolImport, ZpoolInitialize,
    ZpoolLabelClear, ZpoolList, ZpoolOffline, ZpoolOnline, ZpoolPrefetch, ZpoolReguid, ZpoolRemove,
    ZpoolReopen, ZpoolResilver, ZpoolScanCost, ZpoolScrub, ZpoolSet, ZpoolSplit, ZpoolStatus,
    ZpoolSync, ZpoolTrim, ZpoolUpgrade,
};

/// Path of the description itself, which a `GET` gives.
pub const OPENAPI_PATH: &str = "/v1/openapi.json";

/// Path of what programs that watch servers ask for by a `GET`, in the text format of OpenMetrics.
pub const METRICS_PATH: &str = "/metrics";

/// What has been described.
struct Document {
    schemas: SchemaGenerator,
    paths: Map<String, Value>,
}

/// How a request is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// With its reply.
    Reply,
    /// By turning the connection into a stream.
    Stream,
}

/// A role's name in JSON.
fn word(role: Role) -> Value {
    json!(role)
}

fn content(schema: &schemars::Schema) -> Value {
    json!({"application/json": {"schema": schema}})
}

impl Document {
    fn schema<T: JsonSchema>(&mut self) -> schemars::Schema {
        self.schemas.subschema_for::<T>()
    }

    /// What the type's documentation says first.
    fn summary<T: JsonSchema>(&mut self) -> String {
        // Its definition is there once the type has been named.
        let _ = self.schema::<T>();
        let definition = self.schemas.definitions().get(T::schema_name().as_ref());
        let description = definition.and_then(|definition| definition["description"].as_str());
        let first = description.unwrap_or_default().split("\n\n").next();
        first.unwrap_or_default().replace('\n', " ")
    }

    fn failure(&mut self, description: &str) -> Value {
        json!({"description": description, "content": content(&self.schema::<Failure>())})
    }

    fn add<C: Call>(&mut self, answer: Answer) {
        let summary = self.summary::<C>();
        let mut operation = json!({
            "operationId": C::PATH.trim_start_matches("/v1/").replace(['/', '-'], "_"),
            "tags": [C::PATH.split('/').nth(2)],
            "summary": summary,
            "requestBody": {"required": true, "content": content(&self.schema::<C>())},
            "responses": {},
        });
        let mut responses = Map::new();
        match answer {
            Answer::Reply => {
                let reply = content(&self.schema::<C::Reply>());
                responses.insert(
                    "200".into(),
                    json!({"description": "What was asked for.", "content": reply}),
                );
            }
            Answer::Stream => {
                let description = format!(
                    "The connection is the stream (Upgrade: {STREAM_PROTOCOL}); the header \
                     {STREAM_JOB_HEADER} has the number of its job."
                );
                responses.insert("101".into(), json!({ "description": description }));
                let reply = content(&self.schema::<C::Reply>());
                operation["x-job-result"] = reply["application/json"]["schema"].clone();
            }
        }
        if let Some(kind) = C::JOB {
            operation["x-job"] = json!(kind);
            if answer == Answer::Reply {
                operation["parameters"] = json!([{
                    "name": "Prefer",
                    "in": "header",
                    "description": "respond-async, or respond-async with wait=SECONDS: to be \
                                    answered with the job.",
                    "schema": {"type": "string"},
                }]);
                let job = content(&self.schema::<Job>());
                responses.insert(
                    "202".into(),
                    json!({"description": "It takes longer, as this job.", "content": job}),
                );
            }
        }
        operation["security"] = match C::ROLE {
            Some(role) => {
                operation["x-role"] = word(role);
                responses.insert(
                    "401".into(),
                    self.failure("There is neither a session nor a key."),
                );
                responses.insert("403".into(), self.failure("The role does not suffice."));
                json!([{"session": [], "csrf": []}, {"key": []}])
            }
            None => json!([]),
        };
        responses.insert("default".into(), self.failure("It failed."));
        operation["responses"] = Value::Object(responses);
        let before = self
            .paths
            .insert(C::PATH.into(), json!({"post": operation}));
        assert!(before.is_none(), "{} is there twice", C::PATH);
    }

    fn add_events(&mut self) {
        let event = self.schema::<Event>();
        let query = |name: &str, about: &str, schema: Value| {
            let mut parameter = json!({"name": name, "in": "query", "description": about});
            parameter["schema"] = schema;
            parameter
        };
        let kinds = json!({"type": "string", "enum": ["own", "zfs"]});
        let number = json!({"type": "integer", "minimum": 0});
        let operation = json!({
            "operationId": "events",
            "tags": ["events"],
            "summary": "Follows what happens, as server-sent events.",
            "x-role": word(Role::Viewer),
            "security": [{"session": []}, {"key": []}],
            "parameters": [
                query("after", "Number of the last event that is known.", number),
                query("kind", "Only the server's own events, or only OpenZFS's.", kinds),
            ],
            "responses": {
                "200": {
                    "description": "Events without an end, each in a field 'data'.",
                    "content": {"text/event-stream": {"schema": {"type": "string"}}},
                    "x-event": event,
                },
                "401": self.failure("There is neither a session nor a key."),
                "default": self.failure("It failed."),
            },
        });
        self.paths
            .insert(EVENTS_PATH.into(), json!({"get": operation}));
    }

    fn add_download(&mut self) {
        let query = |name: &str, about: &str| {
            json!({"name": name, "in": "query", "description": about, "required": true,
                   "schema": {"type": "string"}})
        };
        let operation = json!({
            "operationId": "files_download",
            "tags": ["files"],
            "summary": "Gives what a regular file holds.",
            "x-role": word(Role::Operator),
            "security": [{"session": []}, {"key": []}],
            "parameters": [
                query("dataset", "A filesystem, or a snapshot of one."),
                query("path", "Path of the file in it, as /v1/files/list writes it."),
            ],
            "responses": {
                "200": {
                    "description": "The file.",
                    "content": {"application/octet-stream": {}},
                },
                "401": self.failure("There is neither a session nor a key."),
                "403": self.failure("The role does not suffice."),
                "default": self.failure("It failed."),
            },
        });
        self.paths
            .insert(FILE_DOWNLOAD_PATH.into(), json!({"get": operation}));
    }

    fn add_itself(&mut self) {
        let operation = json!({
            "operationId": "openapi",
            "tags": ["openapi"],
            "summary": "Gives this description.",
            "x-role": word(Role::Viewer),
            "security": [{"session": []}, {"key": []}],
            "responses": {
                "200": {
                    "description": "OpenAPI 3.1.",
                    "content": {"application/json": {"schema": {"type": "object"}}},
                },
                "401": self.failure("There is neither a session nor a key."),
                "default": self.failure("It failed."),
            },
        });
        self.paths
            .insert(OPENAPI_PATH.into(), json!({"get": operation}));
    }

    fn add_metrics(&mut self) {
        let operation = json!({
            "operationId": "metrics",
            "tags": ["metrics"],
            "summary": "Gives metrics of pools, devices, datasets, shares and the server.",
            "x-role": word(Role::Viewer),
            "security": [{"session": []}, {"key": []}],
            "responses": {
                "200": {
                    "description": "OpenMetrics 1.0.",
                    "content": {"application/openmetrics-text": {"schema": {"type": "string"}}},
                },
                "401": self.failure("There is neither a session nor a key."),
                "default": self.failure("It failed."),
            },
        });
        self.paths
            .insert(METRICS_PATH.into(), json!({"get": operation}));
    }

    fn finish(mut self, version: &str) -> Value {
        let schemas = self.schemas.take_definitions(true);
        self.paths.sort_keys();
        json!({
            "openapi": "3.1.0",
            "info": {
                "title": "Millpond",
                "version": version,
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            "servers": [{"url": "/"}],
            "paths": self.paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": {
                    "session": {"type": "apiKey", "in": "cookie", "name": SESSION_COOKIE},
                    "csrf": {"type": "apiKey", "in": "header", "name": CSRF_HEADER},
                    "key": {"type": "http", "scheme": "bearer"},
                },
            },
        })
    }
}

macro_rules! add_all {
    ($document:ident, $answer:expr, $($call:ty),* $(,)?) => {
        $($document.add::<$call>($answer);)*
    };
}

/// The description, of this version of the server.
pub fn openapi(version: &str) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut document = Document {
        schemas: settings.into_generator(),
        paths: Map::new(),
    };
    add_all!(
        document,
        Answer::Reply,
        ApiKeyList,
        ApiKeyMake,
        ApiKeyRemove,
        AlertList,
        AlertSettingsGet,
        AlertSettingsSet,
        AlertTest,
        AuditList,
        BenchCompare,
        BenchGet,
        BenchList,
        BenchLook,
        BenchProfiles,
        BenchProgress,
        BenchRemove,
        BenchRun,
        CertificateRenew,
        CertificateSet,
        CertificateStatus,
        ConsoleLink,
        DiskLightsTest,
        DiskList,
        FileAccess,
        FileAccessSet,
        FileList,
        FileRestore,
        GroupAdd,
        GroupChange,
        GroupRemove,
        PeopleList,
        PersonAdd,
        PersonPassword,
        PersonRemove,
        DiskLocate,
        DiskOverview,
        DiskPower,
        HostBuses,
        InjectAdd,
        InjectCancel,
        InjectList,
        InjectTune,
        DiskShow,
        DiskTest,
        EventHistory,
        IscsiSecretList,
        IscsiSecretRemove,
        IscsiSecretSet,
        JobCancel,
        JobGet,
        JobList,
        JobResult,
        PlanAsk,
        PlanDedup,
        PlanLog,
        ReportGet,
        ReportList,
        CacheGet,
        ScheduleList,
        SchedulePause,
        ScheduleRemove,
        ScheduleRun,
        ScheduleSet,
        ServerInfo,
        ServerMemory,
        ServerStop,
        SessionInfo,
        SessionLogin,
        SessionLogout,
        SessionPassword,
        SessionSetup,
        ReplicationChange,
        ReplicationCreate,
        ReplicationList,
        ReplicationPause,
        ReplicationRemove,
        ReplicationRun,
        ShareList,
        SmbUserAdd,
        SmbUserList,
        SmbUserPassword,
        SmbUserRemove,
        UpsStatus,
        UserAdd,
        UserChange,
        UserList,
        UserRemove,
        ZfsAllow,
        ZfsAllowList,
        ZfsBookmark,
        ZfsChangeKey,
        ZfsClone,
        ZfsCreate,
        ZfsDestroy,
        ZfsDiff,
        ZfsHold,
        ZfsHolds,
        ZfsInherit,
        ZfsKeys,
        ZfsList,
        ZfsLoadKey,
        ZfsMount,
        ZfsMountList,
        ZfsProgram,
        ZfsProject,
        ZfsPromote,
        ZfsReceiveAbort,
        ZfsRedact,
        ZfsRelease,
        ZfsRename,
        ZfsRewrite,
        ZfsRollback,
        ZfsSendPlan,
        ZfsSet,
        ZfsShare,
        ZfsSnapshot,
        ZfsSpace,
        ZfsUnloadKey,
        ZfsUnmount,
        ZfsUnshare,
        ZfsWait,
        ZpoolAdd,
        ZpoolAttach,
        ZpoolCheckpoint,
        ZpoolClear,
        ZpoolCreate,
        ZpoolDdtPrune,
        ZpoolDestroy,
        ZpoolDetach,
        ZpoolEvents,
        ZpoolEventsClear,
        ZpoolExport,
        ZpoolFreeze,
        ZpoolHistory,
        ZpoolImport,
        ZpoolInitialize,
        ZpoolLabelClear,
        ZpoolList,
        ZpoolOffline,
        ZpoolOnline,
        ZpoolPrefetch,
        ZpoolReguid,
        ZpoolRemove,
        ZpoolReopen,
        ZpoolResilver,
        ZpoolScanCost,
        ZpoolScrub,
        ZpoolSet,
        ZpoolSplit,
        ZpoolStatus,
        ZpoolSync,
        ZpoolTrim,
        ZpoolUpgrade,
    );
    add_all!(document, Answer::Stream, ZfsReceive, ZfsSend);
    document.add_events();
    document.add_download();
    document.add_itself();
    document.add_metrics();
    document.finish(version)
}

/// The fields that a message of this kind always has.
pub fn required_fields<T: JsonSchema>() -> Vec<String> {
    let schema = schemars::schema_for!(T);
    let required = schema.get("required").and_then(|names| names.as_array());
    let names = required.into_iter().flatten();
    names
        .filter_map(|name| Some(name.as_str()?.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every request that crate `api` knows is described, and what a schema names is there.
    #[test]
    fn all_requests_are_described() {
        let document = openapi("1");
        let paths = document["paths"].as_object().unwrap();
        let mut known = 0;
        let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
        for entry in std::fs::read_dir(sources).unwrap() {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            for rest in text.split("const PATH: &'static str = \"").skip(1) {
                let path = rest.split('"').next().unwrap();
                assert!(paths.contains_key(path), "{path} is not in openapi()");
                known += 1;
            }
        }
        // The four that are no calls.
        assert_eq!(known + 4, paths.len());
        let text = document.to_string();
        for name in text.split("\"#/components/schemas/").skip(1) {
            let name = name.split('"').next().unwrap();
            assert!(
                document["components"]["schemas"][name].is_object(),
                "{name} is not described"
            );
        }
        let login = &paths["/v1/session/login"]["post"];
        assert_eq!(login["security"], json!([]));
        assert!(login["x-role"].is_null());
        let destroy = &paths["/v1/zpool/destroy"]["post"];
        assert_eq!(destroy["x-role"], "admin");
        assert_eq!(paths["/v1/zfs/destroy"]["post"]["x-role"], "operator");
        assert_eq!(paths["/v1/zpool/list"]["post"]["x-role"], "viewer");
        assert!(destroy["summary"].as_str().unwrap().len() > 5, "{destroy}");
    }
}
