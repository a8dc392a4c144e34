//! Threads.

use super::*;

struct Begin {
    routine: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
    id: usize,
}

extern "C" fn begin(begin: *mut c_void) -> *mut c_void {
    let Begin {
        routine,
        argument,
        id,
    } = *unsafe { Box::from_raw(begin.cast::<Begin>()) };
    {
        let _inside = world::stay_inside();
        world::adopt(id + 1);
        let baton = std::sync::Arc::clone(&world().threads[id].baton);
        crate::kernel::wait_for(&baton);
    }
    let result = routine(argument);
    let _inside = world::stay_inside();
    world().ended(id);
    switch();
    world::adopt(0);
    result
}

type Create = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    extern "C" fn(*mut c_void) -> *mut c_void,
    *mut c_void,
) -> c_int;

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    routine: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> c_int {
    let real: Create = unsafe { std::mem::transmute(next(c"pthread_create")) };
    let Some(_inside) = enter() else {
        return unsafe { real(thread, attributes, routine, argument) };
    };
    if let Err(errno) = operation("thread", "", 20_000) {
        return errno;
    }
    let it = world();
    let id = it.threads.len();
    it.threads
        .push(Thread::new(it.now_ns, it.incarnation, false));
    let begins = Box::into_raw(Box::new(Begin {
        routine,
        argument,
        id,
    }));
    let result = unsafe { real(thread, attributes, begin, begins.cast()) };
    if result == 0 {
        it.threads[id].handle = Some(unsafe { *thread });
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_join(thread: libc::pthread_t, result: *mut *mut c_void) -> c_int {
    let real: unsafe extern "C" fn(libc::pthread_t, *mut *mut c_void) -> c_int =
        unsafe { std::mem::transmute(next(c"pthread_join")) };
    if let Some(_inside) = enter() {
        let id = world()
            .threads
            .iter()
            .rposition(|known| known.handle == Some(thread));
        if let Some(id) = id
            && !matches!(world().threads[id].state, State::Ended)
        {
            let it = world();
            it.checks.is_ending |= it.threads[it.current].is_loop;
            wait(State::Join(id), None);
        }
    }
    unsafe { real(thread, result) }
}
