//! Composed backends pass the conformance suite, and recover from a failure between any two steps.

mod behind;
mod credit_elsewhere;
mod disagree;
mod extend;
mod faults;
mod limits_elsewhere;
mod parts;
mod support;
