//! Ingero's trace databases: made-up ones of each schema, and the public ones where they are at hand.

mod chains;
mod events;
mod fixture;
mod hostile;
mod public;
mod statistics;
