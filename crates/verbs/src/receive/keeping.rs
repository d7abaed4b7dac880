//! What came of a receive that was broken off is kept, where it can be gone on with.

use api::{Failure, Refusal};
use dataset::{Receiving, ResumeToken};
use format::stream::{Begin, StreamFeatures};

use super::{Place, Run};
use service::receives::Broken;

impl Run<'_> {
    /// Gives a receive up. What came for one that can be gone on with is kept, whatever ended it
    /// (`dmu_recv_cleanup_ds`, module/zfs/dmu_recv.c): a quota or the pool's end may be in the way
    /// today, and gone tomorrow. The failure says how it is gone on with.
    pub(super) async fn give_up(
        &self,
        receiving: Receiving,
        place: &Place,
        begin: &Begin,
        mut failure: Failure,
    ) -> Failure {
        let dsl = self.open.pool.dsl();
        let keeps = receiving.target().resumable || receiving.resumed_at().is_some();
        if let Err(error) = dsl.receives().give_up(receiving, true).await {
            tracing::warn!(target = place.head, %error, "a failed receive stays");
        }
        // One that is suspended answers later, and what was given up goes.
        let is_given_up = self.under_way.broken() == Some(Broken::GivenUp);
        let token = match keeps && !is_given_up && self.open.pool.suspended().is_none() {
            true => dsl
                .properties()
                .get(&place.head, "receive_resume_token")
                .await
                .ok(),
            false => None,
        };
        let token = token.and_then(|setting| setting.value.text().map(str::to_owned));
        let token = token.filter(|token| ResumeToken::decode(token).is_some());
        if let Some(Refusal::Receive {
            is_full,
            is_new,
            resume_token,
            ..
        }) = failure.refusal.as_deref_mut()
        {
            // A stream that goes on is neither.
            let goes_on = begin.features.contains(StreamFeatures::RESUMING);
            *is_full = (!goes_on).then_some(begin.from_guid.get() == 0);
            *is_new = place.is_new();
            *resume_token = token;
        } else if let Some(token) = token {
            failure.message = format!("{}\n{}", failure.message, api::how_to_resume(&token));
        }
        failure
    }
}
