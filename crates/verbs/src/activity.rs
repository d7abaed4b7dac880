//! `zpool initialize` and `zpool trim`.

use api::{
    ActivityAction, ActivityRefusal, ActivityReply, EventKind, Failure, FailureKind,
    ZpoolInitialize, ZpoolTrim,
};
use device::BoxFuture;
use pool::{ActivityCommand, ActivityKind, ActivityObstacle, ActivitySpec};

use service::error::from_pool;
use serving::Serving;

fn command(action: ActivityAction) -> ActivityCommand {
    match action {
        ActivityAction::Start => ActivityCommand::Start,
        ActivityAction::Cancel => ActivityCommand::Cancel,
        ActivityAction::Suspend => ActivityCommand::Suspend,
        ActivityAction::Uninit => ActivityCommand::Forget,
    }
}

fn obstacle(why: ActivityObstacle) -> api::ActivityObstacle {
    match why {
        ActivityObstacle::NoSuchDevice => api::ActivityObstacle::NoSuchDevice,
        ActivityObstacle::Spare => api::ActivityObstacle::Spare,
        ActivityObstacle::Cache => api::ActivityObstacle::Cache,
        ActivityObstacle::NotWriteable => api::ActivityObstacle::NotWriteable,
        ActivityObstacle::TrimUnsupported => api::ActivityObstacle::TrimUnsupported,
        ActivityObstacle::Busy => api::ActivityObstacle::Busy,
        ActivityObstacle::NotActive => api::ActivityObstacle::NotActive,
        ActivityObstacle::Expanded => api::ActivityObstacle::Expanded,
    }
}

/// `zpool initialize`.
pub fn zpool_initialize<'a>(
    serving: &'a Serving,
    call: ZpoolInitialize,
) -> BoxFuture<'a, Result<ActivityReply, Failure>> {
    Box::pin(async move {
        let spec = ActivitySpec {
            kind: ActivityKind::Initialize,
            command: command(call.action),
            value: call.zero.then_some(0),
            rate: 0,
            secure: false,
        };
        let doing = format!("cannot initialize '{}'", call.name);
        run(
            serving,
            &call.name,
            &call.devices,
            &spec,
            &call.command,
            &doing,
        )
        .await
    })
}

/// `zpool trim`.
pub fn zpool_trim<'a>(
    serving: &'a Serving,
    call: ZpoolTrim,
) -> BoxFuture<'a, Result<ActivityReply, Failure>> {
    Box::pin(async move {
        let doing = format!("cannot trim '{}'", call.name);
        if call.action == ActivityAction::Uninit {
            let message = format!("{doing}: there is nothing to forget of a trim");
            return Err(Failure::new(FailureKind::Invalid, message));
        }
        let spec = ActivitySpec {
            kind: ActivityKind::Trim,
            command: command(call.action),
            value: None,
            rate: call.rate,
            secure: call.secure,
        };
        run(
            serving,
            &call.name,
            &call.devices,
            &spec,
            &call.command,
            &doing,
        )
        .await
    })
}

async fn run(
    serving: &Serving,
    name: &str,
    devices: &[String],
    spec: &ActivitySpec,
    typed: &str,
    doing: &str,
) -> Result<ActivityReply, Failure> {
    let open = serving.pools.get(name)?;
    let _admin = open.admin.lock().await;
    let done = open.pool.activity(devices, spec).await;
    let done = done.map_err(|error| from_pool(doing, &error))?;
    let jobs = match spec.command {
        ActivityCommand::Start => {
            open.background
                .activities_begun(&open.pool, &done.begun, spec.kind)
        }
        _ => Vec::new(),
    };
    crate::zpool::log_command(&open.pool, typed).await;
    open.background.poke(&open.pool);
    serving.events.tell_of(&open.pool, EventKind::PoolChanged);
    let refused = done
        .refused
        .into_iter()
        .map(|(device, why)| ActivityRefusal {
            device,
            why: obstacle(why),
        });
    Ok(ActivityReply {
        refused: refused.collect(),
        devices: done.devices,
        jobs,
    })
}
