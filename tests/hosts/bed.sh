#!/bin/bash
# Hosts on one machine: bed.sh RATE ADDRESS=HOSTNAME...
#
# Must be process 1 of namespaces of its own (tests/hosts/bed.py starts it so): when it ends, the kernel ends every
# process of the bed, and with them go their networks, mounts and names. Each host has a network, a host name, shared
# memory and a folder for temporary files of its own, and a link of RATE each way to the switch:
#
#     host h1: eth0 10.77.0.1 ---- port1 \
#     host h2: eth0 10.77.0.2 ---- port2 -- switch (a bridge)
#
# Says "ready" once all is there, then waits for ever.
set -eu
rate=$1
shift
bed=/var/tmp/bed
mount -t tmpfs tmpfs /var/tmp
mkdir $bed
trap : CHLD # children of launchers that have ended come to process 1

ip link set lo up
ip link add switch type bridge
ip link set switch up

echo "127.0.0.1 localhost" > $bed/names
number=0
for host; do
  number=$((number + 1))
  echo "10.77.0.$number ${host%%=*} ${host#*=}" >> $bed/names
done

limit() { # limit DEVICE: as a switch's port or a host's card, with a queue of 50 ms
  [ "$rate" = none ] || echo "qdisc add dev $1 root tbf rate $rate burst 256kb latency 50ms"
}

number=0
for host; do
  number=$((number + 1)) address=10.77.0.$number
  unshare --net --uts --ipc --mount bash -c "
    hostname ${host#*=}
    mount -t sysfs sysfs /sys # which shows this host's network
    mount -t tmpfs tmpfs /dev/shm
    mkdir -p $bed/${host%%=*}.files
    mount --bind $bed/names /etc/hosts
    mount -t tmpfs tmpfs $bed/${host%%=*}.files
    echo up
    trap : CHLD
    exec sleep infinity" > $bed/${host%%=*}.says &
  echo $! > $bed/${host%%=*}
  ln -s ${host%%=*} $bed/$address
  until [ -s $bed/${host%%=*}.says ]; do sleep 0.01; done
  ip link add port$number type veth peer name eth0 netns $!
  ip link set port$number master switch up
  enter="nsenter --target $! --net"
  $enter ip -batch - << END
link set lo up
address add $address/24 dev eth0
link set eth0 up
END
  limit port$number | tc -batch -
  limit eth0 | $enter tc -batch -
done
echo ready
while :; do
  sleep infinity &
  wait $! || :
done
