//! Requests about who uses shares, and whose directories are.

use api::{
    FileAccess, FileAccessSet, GroupAdd, GroupChange, GroupRemove, PeopleList, PersonAdd,
    PersonPassword, PersonRemove, SmbUserAdd, SmbUserList, SmbUserPassword, SmbUserRemove,
};
use serving::Serving;
use verbs::files;

use super::Routes;

impl Routes<Serving> {
    /// Those of people, groups and users of SMB, and of access to directories.
    pub(super) fn accounts(self) -> Self {
        self.on(|serving, call: FileAccess| async move {
            files::access(&serving.pools, &serving.people, &call).await
        })
        .on(|serving, call: FileAccessSet| async move {
            files::set_access(&serving.pools, &serving.people, &call).await
        })
        .on(|serving, _: PeopleList| async move { serving.people.list(&*serving.smb).await })
        .on(|serving, call: PersonAdd| async move {
            serving.people.add(&*serving.smb, call).await
        })
        .on(|serving, call: PersonPassword| async move {
            serving.people.password(&*serving.smb, call).await
        })
        .on(|serving, call: PersonRemove| async move {
            serving.people.remove(&*serving.smb, call).await
        })
        .on(|serving, call: GroupAdd| async move {
            serving.people.group_add(&*serving.smb, call).await
        })
        .on(|serving, call: GroupChange| async move {
            serving.people.group_change(&*serving.smb, call).await
        })
        .on(|serving, call: GroupRemove| async move { serving.people.group_remove(call).await })
        .on(|serving, call: SmbUserAdd| async move { serving.smb.user_add(call).await })
        .on(|serving, call: SmbUserPassword| async move { serving.smb.user_password(call).await })
        .on(|serving, call: SmbUserList| async move { serving.smb.user_list(&call).await })
        .on(|serving, call: SmbUserRemove| async move { serving.smb.user_remove(call).await })
    }
}
