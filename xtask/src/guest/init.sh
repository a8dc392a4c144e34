#!/bin/busybox sh
# PID 1 of a guest: mounts what a node has, runs /cmd, says its exit status on the console, powers off.
# The kernel command line has plimsoll.cgroup= (cgroup2, cgroup1, hybrid), plimsoll.shell=1 for a shell, and the serial ports:
# plimsoll.console= and plimsoll.files=.
/bin/busybox --install -s /bin
export PATH=/bin:/payload:/usr/bin:/usr/sbin:/sbin HOME=/tmp TERM=linux
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null
mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null
mount -t securityfs securityfs /sys/kernel/security 2>/dev/null
mount -t bpf -o mode=0700 bpf /sys/fs/bpf
ip link set lo up 2>/dev/null

setting() {
    sed -n "s/.*plimsoll\.$1=\([a-zA-Z0-9]*\).*/\1/p" /proc/cmdline
}

# A v1 controller that this kernel does not have leaves no folder behind.
mount_v1() {
    mkdir "/sys/fs/cgroup/$1"
    mount -t cgroup -o "$1" cgroup "/sys/fs/cgroup/$1" 2>/dev/null || rmdir "/sys/fs/cgroup/$1"
}

case $(setting cgroup) in
cgroup2)
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    # One write each: a controller that is missing must not take the others with it.
    for controller in cpu memory cpuset pids io hugetlb; do
        echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control
    done 2>/dev/null
    ;;
cgroup1)
    mount -t tmpfs tmpfs /sys/fs/cgroup
    for controller in cpu,cpuacct memory cpuset pids freezer hugetlb; do mount_v1 $controller; done
    ;;
hybrid)
    mount -t tmpfs tmpfs /sys/fs/cgroup
    for controller in cpu,cpuacct memory cpuset pids hugetlb; do mount_v1 $controller; done
    mkdir /sys/fs/cgroup/unified
    mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified
    ;;
esac

cd /payload
if [ "$(setting shell)" = 1 ]; then
    stty -F "/dev/$(setting console)" sane
    setsid cttyhack sh
else
    sh /cmd </dev/null
fi
status=$?
if [ -n "$(ls -A /out)" ]; then
    files=/dev/$(setting files)
    stty -F "$files" raw 2>/dev/null
    tar -C /out -cf - . | gzip -1 >"$files"
fi
# The blank line first: the command may have left the cursor in the middle of one.
echo
echo "@@PLIMSOLL-STATUS $status@@"
sync
sleep 0.2
poweroff -f
