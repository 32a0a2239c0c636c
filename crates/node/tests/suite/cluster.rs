//! Cluster tests in one process, on simulated disks and networks.

mod backup;
mod catch_up;
mod damage;
mod exactly_once;
mod export;
mod failures;
mod hostile;
mod joining;
mod keys;
mod members;
mod money;
mod names;
mod partition;
mod restart;
mod settings;
mod sizes;
mod slow_link;
mod space;
mod time;
