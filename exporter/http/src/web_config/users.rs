//! The users and their passwords.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::str::FromStr as _;

use bcrypt::HashParts;
use parking_lot::{Mutex, MutexGuard};
use ring::hmac;
use ring::rand::SystemRandom;

use super::Complaints;

/// The highest cost of a hash, at which a verification takes seconds. Each step doubles the time.
const MAX_COST: u32 = 18;
/// Verified passwords that are remembered.
const REMEMBERED: usize = 64;

/// The users and the hashes of their passwords.
pub(crate) struct Users {
    hashes: BTreeMap<String, String>,
    /// Verified against for unknown users, so that they take the same time.
    decoy: String,
    /// Remembered tags are useless without this key, which exists in this process only.
    key: Option<hmac::Key>,
    /// Tags of verified credentials, the oldest first.
    remembered: Mutex<VecDeque<hmac::Tag>>,
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.hashes.keys()).finish()
    }
}

impl Default for Users {
    fn default() -> Self {
        Self::new(BTreeMap::new(), 10)
    }
}

impl Users {
    fn new(hashes: BTreeMap<String, String>, highest_cost: u32) -> Self {
        let decoy = format!("$2b${highest_cost:02}${}", ".".repeat(53));
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok();
        Self { hashes, decoy, key, remembered: Mutex::default() }
    }

    pub(super) fn build(section: BTreeMap<String, String>, complaints: &mut Complaints) -> Self {
        let mut highest = 4;
        for (name, hash) in &section {
            let key = format!("basic_auth_users.{name}");
            if name.contains(':') || name.contains(char::is_control) {
                complaints.add(
                    &key,
                    "has an invalid name, and must have one without : and control characters",
                );
            }
            // The value is not shown: it may be a password.
            let known = ["$2a$", "$2b$", "$2x$", "$2y$"].iter().any(|p| hash.starts_with(p));
            match HashParts::from_str(hash).map(|parts| parts.get_cost()) {
                Ok(cost @ 4..=MAX_COST) if known && hash.len() == 60 => highest = highest.max(cost),
                Ok(cost) if known && hash.len() == 60 => complaints
                    .add(&key, format!("has a hash of cost {cost}, and must have one from 4 to {MAX_COST}")),
                _ => complaints.add(
                    &key,
                    "is not a bcrypt hash (value not shown), and must be one as printed by htpasswd -nBC 10 \"\": $2y$10$ and 53 more characters",
                ),
            }
        }
        Self::new(section, highest)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    pub(super) fn count(&self) -> usize {
        self.hashes.len()
    }

    /// Returns true if these credentials were verified before, without hashing.
    pub(crate) fn is_remembered(&self, user: &str, password: &[u8]) -> bool {
        let Some(tag) = self.tag(user, password) else { return false };
        self.remembered().iter().any(|known| same(known, &tag))
    }

    /// Verifies credentials. Takes as long as bcrypt, for unknown users too.
    pub(crate) fn verify(&self, user: &str, password: &[u8]) -> bool {
        let known = self.hashes.get(user);
        let matches = bcrypt::verify(password, known.unwrap_or(&self.decoy)).unwrap_or(false);
        if !matches || known.is_none() {
            return false;
        }
        if let Some(tag) = self.tag(user, password) {
            let mut remembered = self.remembered();
            if !remembered.iter().any(|known| same(known, &tag)) {
                if remembered.len() == REMEMBERED {
                    remembered.pop_front();
                }
                remembered.push_back(tag);
            }
        }
        true
    }

    fn remembered(&self) -> MutexGuard<'_, VecDeque<hmac::Tag>> {
        self.remembered.lock()
    }

    fn tag(&self, user: &str, password: &[u8]) -> Option<hmac::Tag> {
        let mut context = hmac::Context::with_key(self.key.as_ref()?);
        // The length separates the name from the password.
        context.update(&(user.len() as u64).to_le_bytes());
        context.update(user.as_bytes());
        context.update(password);
        Some(context.sign())
    }
}

/// Without the key, tags reveal nothing about the password, and so neither does the time of this comparison.
fn same(a: &hmac::Tag, b: &hmac::Tag) -> bool {
    a.as_ref() == b.as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users() -> Users {
        let hash = bcrypt::hash("secret", 4).unwrap();
        let section = [("alice".to_owned(), hash)].into();
        let mut complaints = Complaints::default();
        let users = Users::build(section, &mut complaints);
        assert!(complaints.0.is_empty(), "{complaints:?}");
        users
    }

    #[test]
    fn only_the_right_password_of_a_user_is_right_and_remembered() {
        let users = users();
        assert!(!users.is_remembered("alice", b"secret"));
        assert!(users.verify("alice", b"secret") && users.is_remembered("alice", b"secret"));
        for (user, password) in
            [("alice", "Secret"), ("bob", "secret"), ("", ""), ("alices", "ecret")]
        {
            assert!(!users.verify(user, password.as_bytes()), "{user}");
            assert!(!users.is_remembered(user, password.as_bytes()), "{user}");
        }
    }

    #[test]
    fn the_decoy_is_a_hash_so_that_unknown_users_take_as_long() {
        let users = Users::new(BTreeMap::new(), 5);
        let parts = HashParts::from_str(&users.decoy).unwrap();
        assert_eq!(parts.get_cost(), 5);
        assert!(bcrypt::verify("x", &users.decoy).is_ok_and(|matches| !matches));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let users = users();
        for n in 0..REMEMBERED + 10 {
            let tag = users.tag("alice", n.to_string().as_bytes()).unwrap();
            let mut remembered = users.remembered();
            if remembered.len() == REMEMBERED {
                remembered.pop_front();
            }
            remembered.push_back(tag);
        }
        assert!(users.verify("alice", b"secret"));
        assert_eq!(users.remembered().len(), REMEMBERED);
    }
}
