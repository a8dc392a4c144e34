# What an operator does with the package, in a Debian guest whose PID 1 is systemd. Each step says what it has shown; the first that fails ends it.
set -eu
exec 2>&1
mkdir -p /var/lib/dpkg/info /var/lib/dpkg/updates /var/lib/dpkg/triggers /usr/share/man /etc/plimsoll
touch /var/lib/dpkg/status /var/lib/dpkg/available
# Not those of busybox, which are in /bin.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin

step() { echo "trial: $*"; }
fail() {
    echo "trial: FAILED: $*"
    systemctl status --no-pager plimsoll || true
    tail -n 30 /out/agent.log || true
    exit 1
}
is() { [ "$(systemctl show --property="$1" --value plimsoll)" = "$2" ] || fail "$1 is $(systemctl show --property="$1" --value plimsoll), not $2"; }
until_is() {
    tries=0
    until [ "$(systemctl show --property="$1" --value plimsoll)" = "$2" ]; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || fail "$1 does not become $2"
        sleep 0.2
    done
}

/usr/bin/dpkg --install /payload/plimsoll.deb
is ActiveState inactive
is UnitFileState disabled
for file in /usr/bin/plimsoll /usr/bin/plimsoll-agent /usr/share/bash-completion/completions/plimsoll /etc/plimsoll/config.yaml; do
    [ -e $file ] || fail "$file is not there"
done
[ -d /etc/plimsoll/pods ] || fail "no folder for manifests"
ls /usr/share/man/man1/plimsoll*.1.gz >/dev/null || fail "no manual page"
step "installed, and not started"

# Nothing keeps a journal in this guest.
mkdir -p /run/systemd/system/plimsoll.service.d
printf '[Service]\nStandardOutput=append:/out/agent.log\nStandardError=inherit\n' >/run/systemd/system/plimsoll.service.d/trial.conf
systemctl daemon-reload
systemctl enable --now plimsoll || fail "it does not start"
# Type=notify: the command returned because the agent said that it is ready.
is ActiveState active
is Type notify
is WatchdogUSec 1min\ 30s
pid=$(systemctl show --property=MainPID --value plimsoll)
plimsoll health --ready
[ "$(cat /proc/$pid/oom_score_adj)" = -999 ] || fail "oom_score_adj is $(cat /proc/$pid/oom_score_adj)"
step "started: ready, with a watchdog, as process $pid"

kill -KILL $pid
until_is NRestarts 1
until_is ActiveState active
plimsoll health --ready
step "killed, and started again by systemd"

echo "# mine" >>/etc/plimsoll/config.yaml
systemctl reset-failed plimsoll
before=$(systemctl show --property=MainPID --value plimsoll)
/usr/bin/dpkg --install --force-confdef --force-confold /payload/plimsoll.deb
until_is ActiveState active
after=$(systemctl show --property=MainPID --value plimsoll)
[ "$before" != "$after" ] || fail "an upgrade left the old agent running"
tail -n 1 /etc/plimsoll/config.yaml | grep -q "# mine" || fail "an upgrade took the operator's configuration"
plimsoll health --ready
step "upgraded: another agent, the same configuration"

/usr/bin/dpkg --remove plimsoll
[ ! -e /proc/$after/exe ] || fail "the agent outlived its package"
[ ! -e /usr/bin/plimsoll-agent ] || fail "the programs stayed"
[ -e /etc/plimsoll/config.yaml ] || fail "removing took the configuration"
[ ! -e /etc/systemd/system/multi-user.target.wants/plimsoll.service ] || fail "it is still enabled"
step "removed: no process, no program; the configuration stays"

/usr/bin/dpkg --purge plimsoll
[ ! -e /etc/plimsoll ] || fail "purging left $(ls /etc/plimsoll)"
step "purged: nothing is left"
