//! One file or folder for each subcommand: its arguments and what it does. Imported by nobody.

pub mod admit;
pub mod arbitrate;
pub mod check;
pub mod cli;
pub mod config;
pub mod events;
pub mod exec;
pub mod exit_status;
pub mod explain;
pub mod health;
pub mod manual;
pub mod place;
pub mod quota;
pub mod rank;
pub mod rehearse;
pub mod replay;
pub mod run;
pub mod top;
pub mod topology;
pub mod trace;
pub mod uninstall;
pub mod web;
