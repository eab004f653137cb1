//! The `narad` program.

/// A call that carries one record makes and drops some twenty small pieces of memory; the system's own
/// allocator took an eighth of a shard's time for them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

// As `build.rs` asks the linker to.
narad_wire::runtime_hooks!();

fn main() -> std::process::ExitCode {
    narad_storage::memory::keep_freed();
    narad::cli::run()
}
