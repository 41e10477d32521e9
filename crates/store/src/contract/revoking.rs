//! How revocations are merged, and how their generation shows a change.

use ownership::revocation::REVOCATION_MS;

use super::*;
use crate::{Lease, Revocation, RevocationGeneration, RevocationList, RevocationTimes};

/// A time in milliseconds since 1970.
const NOW: u64 = 1_800_000_000_000;

/// A client that no other test has.
fn client(revoked_ms: u64, lifted_ms: u64) -> Revocation {
    Revocation {
        tenant: format!("t{:x}", random()).into(),
        principal: format!("sub:https://i.example {:x}", random()).into(),
        times: RevocationTimes { revoked_ms, lifted_ms },
    }
}

fn at(client: &Revocation, revoked_ms: u64, lifted_ms: u64) -> Revocation {
    Revocation { times: RevocationTimes { revoked_ms, lifted_ms }, ..client.clone() }
}

async fn revoke(world: &dyn World, all: &[Revocation]) -> RevocationGeneration {
    world.store().revoke(all, NOW).await.expect("revoked")
}

async fn read(world: &dyn World) -> (RevocationGeneration, RevocationList) {
    world.store().revocations().await.expect("the store answers")
}

fn times(list: &RevocationList, client: &Revocation) -> Option<(u64, u64)> {
    let times = list.times(&client.tenant, &client.principal)?;
    Some((times.revoked_ms, times.lifted_ms))
}

/// Each client keeps its own times.
pub async fn revocations_are_read_as_they_were_written(world: &dyn World) {
    let (one, other) = (client(NOW, 0), client(NOW, NOW + 1));
    revoke(world, std::slice::from_ref(&one)).await;
    revoke(world, std::slice::from_ref(&other)).await;
    let (_, list) = read(world).await;
    assert_eq!(times(&list, &one), Some((NOW, 0)));
    assert_eq!(times(&list, &other), Some((NOW, NOW + 1)));
}

/// A late or repeated write takes nothing back.
pub async fn of_each_client_the_latest_times_count(world: &dyn World) {
    let ada = client(NOW, 0);
    for (revoked, lifted) in [(NOW + 5, 0), (NOW, NOW + 9), (NOW, 0), (NOW + 5, NOW + 9)] {
        revoke(world, &[at(&ada, revoked, lifted)]).await;
    }
    assert_eq!(times(&read(world).await.1, &ada), Some((NOW + 5, NOW + 9)));
}

/// Nodes read revocations only if the generation is another one.
pub async fn the_generation_changes_with_each_change(world: &dyn World) {
    let ada = client(NOW, 0);
    let first = revoke(world, std::slice::from_ref(&ada)).await;
    let (read_first, list) = read(world).await;
    // Another test may have changed it since, with what it wrote.
    assert!(times(&list, &ada).is_some() && read_first != RevocationGeneration::NONE);
    let second = revoke(world, &[at(&ada, NOW + 1, 0)]).await;
    assert_ne!(first, second);
    assert_ne!(read(world).await.0, first);
}

/// The answer to a renewal must tell a node of each change.
pub async fn a_renewal_returns_the_generation(world: &dyn World) {
    let lease = |renewal, acknowledged| Lease {
        incarnation: Incarnation(7),
        renewal,
        acknowledged,
        name: "node-a".into(),
        address: "10.0.0.4:7070".into(),
        draining: false,
        load: 3,
        linked: Vec::new(),
    };
    let incarnation = Incarnation(random());
    let renew = async |renewal, acknowledged| {
        let lease = Lease { incarnation, ..lease(renewal, acknowledged) };
        world.store().renew(lease, LONG).await.expect("renewed").revocations
    };
    let before = renew(1, 0).await;
    revoke(world, &[client(NOW, 0)]).await;
    let after = renew(2, 1).await;
    assert_ne!(before, after);
    // A repeated renewal is answered with what is known by then.
    assert_ne!(renew(2, 1).await, before);
    assert_ne!(world.store().revocation_generation().await.expect("an answer"), before);
}

/// What was taken back long ago goes with the next write, and what was not stays.
pub async fn ended_revocations_are_dropped_with_the_next_one(world: &dyn World) {
    let (old, held) = (client(NOW, NOW + 1), client(NOW, 0));
    let new = client(NOW + REVOCATION_MS, 0);
    // Written with the clock of another test, it would be dropped at once.
    let both = [old.clone(), held.clone()];
    world.store().revoke(&both, NOW).await.expect("revoked");
    let later = NOW + 1 + REVOCATION_MS;
    world.store().revoke(std::slice::from_ref(&new), later).await.expect("revoked");
    let (_, list) = read(world).await;
    assert_eq!(times(&list, &old), None);
    assert!(times(&list, &new).is_some() && times(&list, &held).is_some());
}

/// A name of the greatest length, and letters of each length.
pub async fn names_of_clients_are_kept_byte_for_byte(world: &dyn World) {
    let long = format!("sub:https://i.example {}é漢", "x".repeat(2_000));
    let ada = Revocation { principal: long.into(), ..client(NOW, 0) };
    revoke(world, std::slice::from_ref(&ada)).await;
    assert_eq!(times(&read(world).await.1, &ada), Some((NOW, 0)));
}
