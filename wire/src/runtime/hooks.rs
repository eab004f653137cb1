//! The functions of liburing that a program on glommio 0.9 is linked with others for.
//!
//! glommio has no setting for how its rings are made, and no release without the fault that
//! [`super::parking`] ends. What it calls in liburing has C names, and a linker can put something else in the
//! place of a name: `io_uring_queue_init_params` makes a ring ([`super::rings`]);
//! `rust_io_uring_prep_timeout` and `io_uring_wait_cqes` are called at a look at the rings and before a
//! sleep ([`super::parking`]).
//!
//! What this file keeps true: each hook ends in the function that it stands for, or refuses as that
//! function may.
//!
//! Use: [`runtime_hooks!`](crate::runtime_hooks) once in a program, and for its linker `-Wl,--wrap=` with each of
//! the three names; `link.rs` beside this crate's manifest has them. What is linked without is as glommio made it.

/// Defines what the linker puts in the place of liburing's functions; see `runtime/hooks.rs`.
#[macro_export]
macro_rules! runtime_hooks {
    () => {
        // SAFETY: the linker's names for liburing's own functions.
        unsafe extern "C" {
            fn __real_io_uring_queue_init_params(
                entries: ::std::ffi::c_uint,
                ring: *mut ::std::ffi::c_void,
                params: *mut $crate::runtime::rings::Params,
            ) -> ::std::ffi::c_int;
            fn __real_rust_io_uring_prep_timeout(
                entry: *mut ::std::ffi::c_void,
                time: *mut ::std::ffi::c_void,
                events: ::std::ffi::c_uint,
                flags: ::std::ffi::c_uint,
            );
            fn __real_io_uring_wait_cqes(
                ring: *mut ::std::ffi::c_void,
                completion: *mut *mut ::std::ffi::c_void,
                count: ::std::ffi::c_uint,
                time: *const ::std::ffi::c_void,
                signals: *const ::std::ffi::c_void,
            ) -> ::std::ffi::c_int;
        }

        // SAFETY: nothing else has this name; it is called as liburing's function would be.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn __wrap_io_uring_queue_init_params(
            entries: ::std::ffi::c_uint,
            ring: *mut ::std::ffi::c_void,
            params: *mut $crate::runtime::rings::Params,
        ) -> ::std::ffi::c_int {
            let real = __real_io_uring_queue_init_params;
            // SAFETY: glommio's call, with its ring and its parameters.
            unsafe { $crate::runtime::rings::init(real, entries, ring, params) }
        }

        // SAFETY: nothing else has this name; it is called as glommio's function would be.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn __wrap_rust_io_uring_prep_timeout(
            entry: *mut ::std::ffi::c_void,
            time: *mut ::std::ffi::c_void,
            events: ::std::ffi::c_uint,
            flags: ::std::ffi::c_uint,
        ) {
            $crate::runtime::parking::timer_is_made(events);
            // SAFETY: glommio's call, with its entry and its time.
            unsafe { __real_rust_io_uring_prep_timeout(entry, time, events, flags) }
        }

        // SAFETY: nothing else has this name; it is called as liburing's function would be.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn __wrap_io_uring_wait_cqes(
            ring: *mut ::std::ffi::c_void,
            completion: *mut *mut ::std::ffi::c_void,
            count: ::std::ffi::c_uint,
            time: *const ::std::ffi::c_void,
            signals: *const ::std::ffi::c_void,
        ) -> ::std::ffi::c_int {
            if let Some(refused) = $crate::runtime::parking::refusal() {
                return refused;
            }
            // SAFETY: glommio's call, with its ring and what it waits for.
            unsafe { __real_io_uring_wait_cqes(ring, completion, count, time, signals) }
        }
    };
}
