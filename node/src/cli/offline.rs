//! `narad verify` and `narad dump`: looking at files of a node that does not run.
//!
//! What this file keeps true: nothing on the disk is changed.

use super::args::{DumpArgs, VerifyArgs};
use super::error::{CliError, CliResult};
use super::output::Out;
