//! The process's allocator, and how memory goes back to the system.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Gives back what was freed a while ago. mimalloc does so by itself only while much is allocated: a router that has just
/// forwarded a few large bodies, and is idle then, would keep their memory.
pub(crate) fn give_back() {
    // SAFETY: it may be called at any time, on any thread; false: nothing that is in use is touched or waited for.
    unsafe { libmimalloc_sys::mi_collect(false) }
}
