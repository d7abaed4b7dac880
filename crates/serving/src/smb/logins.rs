//! Samba's users, as people of shares have them.

use api::{
    Empty, Failure, Secret, SmbUserAdd, SmbUserList, SmbUserPassword, SmbUserRemove, SmbUserReport,
};
use device::BoxFuture;

use super::Smb;
use super::users::check_password;
use crate::people::Logins;

impl Logins for Smb {
    fn obstacle(&self) -> BoxFuture<'_, Option<String>> {
        Box::pin(self.impossible())
    }

    fn guests_obstacle(&self) -> Option<String> {
        self.no_guests()
    }

    fn check_password(&self, password: &Secret) -> Result<(), String> {
        check_password(password)
    }

    fn users(&self) -> BoxFuture<'_, Result<Vec<SmbUserReport>, Failure>> {
        Box::pin(async {
            let listed = self.user_list(&SmbUserList {}).await?;
            Ok(listed.users)
        })
    }

    fn add(&self, call: SmbUserAdd) -> BoxFuture<'_, Result<Empty, Failure>> {
        Box::pin(self.user_add(call))
    }

    fn change(&self, call: SmbUserPassword) -> BoxFuture<'_, Result<Empty, Failure>> {
        Box::pin(self.user_password(call))
    }

    fn remove(&self, call: SmbUserRemove) -> BoxFuture<'_, Result<Empty, Failure>> {
        Box::pin(self.user_remove(call))
    }
}
