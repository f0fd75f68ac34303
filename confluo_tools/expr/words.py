"""The words that expressions know by heart: protocols, services, header offsets, and what to write instead."""

from __future__ import annotations

# Protocol numbers above IP, by the names of pcap-filter and of the packet schema.
PROTOCOLS = {
    "icmp": 1, "igmp": 2, "ipip": 4, "tcp": 6, "egp": 8, "igrp": 9, "udp": 17, "dccp": 33, "ip6": 41, "ipv6": 41,
    "rsvp": 46, "gre": 47, "esp": 50, "ah": 51, "icmp6": 58, "icmpv6": 58, "none": 59, "eigrp": 88, "ospf": 89,
    "pim": 103, "vrrp": 112, "carp": 112, "l2tp": 115, "sctp": 132, "udplite": 136,
}  # fmt: skip

ETHERTYPES = {
    "ip": 0x0800, "arp": 0x0806, "rarp": 0x8035, "ip6": 0x86DD, "mpls": 0x8847, "pppoed": 0x8863, "pppoes": 0x8864,
    "lldp": 0x88CC, "eapol": 0x888E, "ptp": 0x88F7,
}  # fmt: skip

# Ports by name: a few that everybody knows, the same on every machine (no look-up in /etc/services).
SERVICES = {
    "ftp-data": 20, "ftp": 21, "ssh": 22, "telnet": 23, "smtp": 25, "domain": 53, "dns": 53, "bootps": 67,
    "bootpc": 68, "tftp": 69, "http": 80, "kerberos": 88, "pop3": 110, "ntp": 123, "imap": 143, "imap2": 143,
    "snmp": 161, "bgp": 179, "ldap": 389, "https": 443, "microsoft-ds": 445, "syslog": 514, "rtsp": 554,
    "ldaps": 636, "imaps": 993, "pop3s": 995, "nfs": 2049, "mysql": 3306, "rdp": 3389, "postgresql": 5432,
    "vxlan": 4789, "sip": 5060, "mdns": 5353, "geneve": 6081, "netflow": 2055, "ipfix": 4739,
}  # fmt: skip

# Named offsets and values of header bytes, as in pcap-filter.
OFFSETS = {"tcpflags": 13, "icmptype": 0, "icmpcode": 1, "icmp6type": 0, "icmp6code": 1}
CONSTANTS = {
    "tcp-fin": 1, "tcp-syn": 2, "tcp-rst": 4, "tcp-push": 8, "tcp-psh": 8, "tcp-ack": 16, "tcp-urg": 32,
    "tcp-ece": 64, "tcp-cwr": 128,
    "icmp-echoreply": 0, "icmp-unreach": 3, "icmp-sourcequench": 4, "icmp-redirect": 5, "icmp-echo": 8,
    "icmp-routeradvert": 9, "icmp-routersolicit": 10, "icmp-timxceed": 11, "icmp-paramprob": 12, "icmp-tstamp": 13,
    "icmp-tstampreply": 14, "icmp-ireq": 15, "icmp-ireqreply": 16, "icmp-maskreq": 17, "icmp-maskreply": 18,
    "icmp6-destinationunreach": 1, "icmp6-packettoobig": 2, "icmp6-timeexceeded": 3, "icmp6-parameterproblem": 4,
    "icmp6-echo": 128, "icmp6-echoreply": 129, "icmp6-multicastlistenerquery": 130,
    "icmp6-multicastlistenerreportv1": 131, "icmp6-multicastlistenerdone": 132, "icmp6-routersolicit": 133,
    "icmp6-routeradvert": 134, "icmp6-neighborsolicit": 135, "icmp6-neighboradvert": 136, "icmp6-redirect": 137,
    "icmp6-routerrenum": 138, "icmp6-nodeinformationquery": 139, "icmp6-nodeinformationresponse": 140,
    "icmp6-ineighbordiscoverysolicit": 141, "icmp6-ineighbordiscoveryadvert": 142,
    "icmp6-multicastlistenerreportv2": 143, "icmp6-homeagentdiscoveryrequest": 144,
    "icmp6-homeagentdiscoveryreply": 145, "icmp6-mobileprefixsolicit": 146, "icmp6-mobileprefixadvert": 147,
    "icmp6-certpathsolicit": 148, "icmp6-certpathadvert": 149, "icmp6-multicastrouteradvert": 151,
    "icmp6-multicastroutersolicit": 152, "icmp6-multicastroutertermination": 153,
}  # fmt: skip

# Which bits of which header are kept in which field: (first bit, bits, field, shift in the field), by offset.
# What is not here (lengths of headers, checksums, options) is not stored.
HEADERS: dict[str, tuple[tuple[int, int, str, int], ...]] = {
    "ether": ((0, 48, "eth_dst", 0), (48, 48, "eth_src", 0)),
    "ip": (
        (8, 6, "dscp", 0), (14, 2, "ecn", 0), (16, 16, "ip_len", 0), (32, 16, "ip_id", 0), (48, 3, "ip_flags", 0),
        (51, 13, "frag_offset", 3), (64, 8, "ttl", 0), (72, 8, "proto", 0), (96, 32, "src_ip", 0),
        (128, 32, "dst_ip", 0),
    ),
    "ip6": ((4, 6, "dscp", 0), (10, 2, "ecn", 0), (56, 8, "ttl", 0)),
    "tcp": (
        (0, 16, "src_port", 0), (16, 16, "dst_port", 0), (32, 32, "tcp_seq", 0), (64, 32, "tcp_ack", 0),
        (103, 9, "tcp_flags", 0), (112, 16, "tcp_window", 0),
    ),
    "udp": ((0, 16, "src_port", 0), (16, 16, "dst_port", 0)),
    "sctp": ((0, 16, "src_port", 0), (16, 16, "dst_port", 0)),
    "icmp": ((0, 8, "icmp_type", 0), (8, 8, "icmp_code", 0)),
    "icmp6": ((0, 8, "icmp_type", 0), (8, 8, "icmp_code", 0)),
}  # fmt: skip

# Words of pcap-filter that nothing here can answer.
UNSUPPORTED = {
    "gateway": "names are not looked up; write ether host ADDRESS and not host ADDRESS",
    "inbound": "the direction is not stored", "outbound": "the direction is not stored",
    "ifname": "write iface == NUMBER", "on": "write iface == NUMBER", "rnr": "pf fields are not stored",
    "wlan": "802.11 headers are not stored", "llc": "LLC headers are not stored", "atm": "ATM is not stored",
    "decnet": "DECnet is not stored", "iso": "OSI is not stored", "stp": "write eth_dst == 01:80:c2:00:00:00",
    "ipx": "IPX is not stored", "netbeui": "LLC headers are not stored", "atalk": "write eth_type == 0x809b",
    "aarp": "write eth_type == 0x80f3",
}  # fmt: skip

# What users of display filters, tcpdump and SQL type, and what it is called here.
HINTS = {
    "ip.src": "write src_ip", "ip.dst": "write dst_ip", "ip.addr": "write host 10.0.0.1", "ipv6.src": "write src_ip",
    "ipv6.dst": "write dst_ip", "ipv6.addr": "write host 2001:db8::1", "tcp.port": "write tcp port 80",
    "udp.port": "write udp port 53", "tcp.srcport": "write src_port", "tcp.dstport": "write dst_port",
    "udp.srcport": "write src_port", "udp.dstport": "write dst_port", "frame.len": "write len",
    "frame.cap_len": "write cap_len", "frame.time": "write ts", "frame.time_epoch": "write ts",
    "tcp.flags": "write tcp_flags", "tcp.flags.syn": "write tcp_flags has syn",
    "tcp.flags.ack": "write tcp_flags has ack",
    "tcp.flags.reset": "write tcp_flags has rst", "tcp.flags.fin": "write tcp_flags has fin",
    "tcp.seq": "write tcp_seq", "tcp.ack": "write tcp_ack", "tcp.len": "write payload_len",
    "tcp.window_size_value": "write tcp_window", "tcp.window_size": "write tcp_window", "ip.ttl": "write ttl",
    "ip.proto": "write proto", "ip.id": "write ip_id", "ip.len": "write ip_len", "ip.dsfield.dscp": "write dscp",
    "ip.dsfield.ecn": "write ecn", "vlan.id": "write vlan", "eth.src": "write eth_src", "eth.dst": "write eth_dst",
    "eth.addr": "write ether host 00:11:22:33:44:55", "eth.type": "write eth_type", "icmp.type": "write icmp_type",
    "icmp.code": "write icmp_code", "ipv6": "write ip6", "icmpv6": "write icmp6", "ip4": "write ip", "ipv4": "write ip",
    "sip": "write src_ip", "dip": "write dst_ip", "saddr": "write src_ip", "daddr": "write dst_ip",
    "sport": "write src_port", "dport": "write dst_port", "timestamp": "write ts", "time": "write ts",
    "length": "write len", "flags": "write tcp_flags", "srcip": "write src_ip", "dstip": "write dst_ip",
    "srcport": "write src_port", "dstport": "write dst_port", "protocol": "write proto", "http": "write port 80",
    "https": "write port 443", "dns": "write port 53", "ssh": "write port 22", "gre": "write proto gre",
    "syn": "write tcp_flags has syn", "rst": "write tcp_flags has rst", "fin": "write tcp_flags has fin",
    "any": "write port 80 or host 10.0.0.1",
    **dict.fromkeys(
        ("retransmission", "fast_retransmission", "spurious_retransmission", "out_of_order", "lost_segment",
         "ack_lost_segment", "duplicate_ack", "zero_window", "zero_window_probe", "zero_window_probe_ack",
         "window_full", "window_update", "keep_alive", "keep_alive_ack", "reused_ports", "tcp_analysis",
         "tcp_dup_ack_num", "tcp_bytes_in_flight", "tcp_rel_seq", "tcp_rel_ack", "tcp_window_size", "tcp_rto",
         "tcp_ack_rtt", "tcp_irtt"),
        "--analyze tcp finds it out",
    ),
}  # fmt: skip
