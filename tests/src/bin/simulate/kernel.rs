//! The kernel that the simulator itself runs on, reached past the C library: that one belongs to the model.

use std::ffi::CStr;

use libc::{c_int, c_void};

/// A system call. Negative: the error number.
///
/// # Safety
/// As for the call itself: what its arguments point to must live.
pub(crate) unsafe fn raw(number: libc::c_long, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's; the kernel changes no register but these.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the caller's.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a as isize => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
        );
    }
    result
}

/// As the C library returns it: -1, and the error number in `errno`.
pub(crate) fn answer(result: isize) -> isize {
    if (-4095..0).contains(&result) {
        refuse(i32::try_from(-result).unwrap_or(libc::EIO))
    } else {
        result
    }
}

/// -1 with this error number.
pub(crate) fn refuse(errno: c_int) -> isize {
    // SAFETY: the C library's place for this thread's error number is always there.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// The C library's own function of a name that this program defines itself.
pub(crate) fn next(name: &CStr) -> *mut c_void {
    // SAFETY: `name` is a string; the handle is a constant.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// Waits on a word until it is 1, and takes it. For batons: the model's threads run one at a time.
pub(crate) fn wait_for(word: &std::sync::atomic::AtomicU32) {
    use std::sync::atomic::Ordering;
    while word.swap(0, Ordering::Acquire) == 0 {
        // SAFETY: the word lives for the call.
        unsafe {
            raw(
                libc::SYS_futex,
                [
                    word.as_ptr() as usize,
                    (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize,
                    0,
                    0,
                    0,
                    0,
                ],
            )
        };
    }
}

/// Gives the baton.
pub(crate) fn wake(word: &std::sync::atomic::AtomicU32) {
    word.store(1, std::sync::atomic::Ordering::Release);
    // SAFETY: the word lives for the call.
    unsafe {
        raw(
            libc::SYS_futex,
            [
                word.as_ptr() as usize,
                (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize,
                1,
                0,
                0,
                0,
            ],
        )
    };
}
