//! Users with a role, API keys and the record of changes, as requests ask about them.

use api::{
    ApiKeyList, ApiKeyListReply, ApiKeyMake, ApiKeyMakeReply, ApiKeyRemove, AuditList,
    AuditListReply, Empty, Failure, FailureKind, UserAdd, UserChange, UserChangeReply, UserList,
    UserListReply, UserRemove,
};

use crate::Web;
use crate::caller::Caller;
use crate::totp;

impl Web {
    /// `/v1/users/list`.
    pub fn user_list(&self, _: &UserList) -> Result<UserListReply, Failure> {
        let users = self.people.users()?;
        Ok(UserListReply { users })
    }

    /// `/v1/users/add`.
    pub async fn user_add(&self, call: UserAdd) -> Result<Empty, Failure> {
        let people = &self.people;
        people
            .add(&call.name, call.role, call.password, false)
            .await?;
        // With a user there is no link any more that makes the first.
        let _ = self.setup_token();
        Ok(Empty {})
    }

    /// `/v1/users/change`.
    pub async fn user_change(&self, call: UserChange) -> Result<UserChangeReply, Failure> {
        let name = &call.name;
        let must_log_in = call.role.is_some() || call.password.is_some();
        let changed = self
            .people
            .change_user(name, call.role, call.password, call.totp);
        let secret = changed.await?;
        if must_log_in {
            self.sessions.end_of(name, None);
        }
        Ok(UserChangeReply {
            totp_uri: secret.map(|secret| totp::uri(&secret, name, &self.hostname)),
        })
    }

    /// `/v1/users/remove`.
    pub fn user_remove(&self, call: &UserRemove) -> Result<Empty, Failure> {
        self.people.remove(&call.name)?;
        self.sessions.end_of(&call.name, None);
        Ok(Empty {})
    }

    /// `/v1/keys/list`.
    pub fn api_key_list(&self, _: &ApiKeyList) -> Result<ApiKeyListReply, Failure> {
        let keys = self.people.keys()?;
        Ok(ApiKeyListReply { keys })
    }

    /// `/v1/keys/make`.
    pub fn api_key_make(
        &self,
        caller: &Caller,
        call: &ApiKeyMake,
    ) -> Result<ApiKeyMakeReply, Failure> {
        // It would outlive the key, and whoever made that.
        if caller.has_key() {
            let message = "a key makes no other keys; log in";
            return Err(Failure::new(FailureKind::Denied, message));
        }
        let made_by = caller.session_user();
        let people = &self.people;
        let (id, key) = people.make_key(call, made_by)?;
        Ok(ApiKeyMakeReply { id, key })
    }

    /// `/v1/keys/remove`.
    pub fn api_key_remove(&self, call: &ApiKeyRemove) -> Result<Empty, Failure> {
        self.people.remove_key(&call.id)?;
        Ok(Empty {})
    }

    /// `/v1/audit/list`.
    pub async fn audit_list(&self, call: &AuditList) -> Result<AuditListReply, Failure> {
        let (audit, limit) = (self.audit.clone(), call.limit);
        let listed = tokio::task::spawn_blocking(move || audit.list(limit)).await;
        listed.map_err(|error| Failure::new(FailureKind::Other, error.to_string()))?
    }
}
