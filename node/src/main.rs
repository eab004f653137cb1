//! The `narad` program.

fn main() -> std::process::ExitCode {
    narad::cli::run()
}
