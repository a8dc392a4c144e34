#!/bin/busybox sh
# PID 1 of a kernel that is a process (uml.rs): mounts what a node has, runs /cmd, says its exit status on the console, powers off. With systemd among the
# packages that becomes PID 1, and /cmd a unit of it.
export PATH=/bin:/payload:/usr/bin:/usr/sbin:/sbin HOME=/tmp TERM=linux

run() {
    cd /payload
    sh /cmd </dev/null
    status=$?
    dmesg >/out/dmesg.log
    # The blank line first: the command may have left the cursor in the middle of one.
    echo
    echo "@@PLIMSOLL-STATUS $status@@"
    sync
    sleep 0.2
    poweroff -f
}

[ $$ = 1 ] || run
/bin/busybox --install -s /bin
# As systemd has it: a pod may ask for the mounts that come later.
mount --make-rshared /
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mkdir -p /dev/pts /dev/shm /dev/mqueue
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t mqueue mqueue /dev/mqueue
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for controller in cpu memory pids io; do
    echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control
done 2>/dev/null
mount -t hostfs -o "$(sed -n 's/.*plimsoll\.out=\([^ ]*\).*/\1/p' /proc/cmdline)" none /out
for module in /lib/modules/*.ko; do insmod "$module"; done
# A kubelet (cAdvisor) does not start where the clock of its CPU is not known.
printf 'processor\t: 0\nvendor_id\t: user-mode Linux\ncpu MHz\t\t: 1000.000\nphysical id\t: 0\nsiblings\t: 1\ncore id\t\t: 0\ncpu cores\t: 1\n\n' >/run/cpuinfo
mount --bind /run/cpuinfo /proc/cpuinfo
ip link set lo up
ip addr add 10.0.2.15/32 dev lo
hostname node-1
echo 1 >/proc/sys/vm/overcommit_memory

[ -x /lib/systemd/systemd ] || run
mkdir -p /run/systemd/system
cat >/run/systemd/system/command.service <<UNIT
[Unit]
DefaultDependencies=no
[Service]
ExecStart=/init
StandardOutput=file:/dev/console
StandardError=inherit
LimitNOFILE=1048576
UNIT
exec /lib/systemd/systemd --unit=command.service --log-target=console --log-level=warning --show-status=no
