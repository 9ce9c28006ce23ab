//! `/proc/PID/net`: the heads of its tables.

use std::sync::Arc;

use crate::fs::pseudo::PseudoDir;

const INET: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";
const INET6: &str = "  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

const FILES: &[(&str, &str)] = &[
    (
        "arp",
        "IP address       HW type     Flags       HW address            Mask     Device\n",
    ),
    (
        "dev",
        "Inter-|   Receive                                                |  Transmit\n face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    lo:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0\n",
    ),
    ("if_inet6", ""),
    (
        "netlink",
        "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n",
    ),
    (
        "packet",
        "sk       RefCnt Type Proto  Iface R Rmem   User   Inode\n",
    ),
    ("raw", INET),
    (
        "route",
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n",
    ),
    ("tcp", INET),
    ("tcp6", INET6),
    ("udp", INET),
    ("udp6", INET6),
    (
        "unix",
        "Num       RefCount Protocol Flags    Type St Inode Path\n",
    ),
];

/// The directory.
pub(super) fn directory(dev: u64) -> Arc<PseudoDir> {
    let dir = PseudoDir::new(dev, 0o555);
    for (name, text) in FILES {
        dir.add_file(name, || Ok(text.as_bytes().to_vec()));
    }
    dir
}
