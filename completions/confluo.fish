# command: confluo
# Completion of confluo for fish.  Made by completions/update from the options of the command and head.fish.

# Whether the verbs of the command line are these.
function __confluo_at
    set -l words (commandline -opc)
    set -e words[1]
    for verb in $argv
        test "$words[1]" = "$verb"
        or return 1
        set -e words[1]
    end
end

# Words with commas between them: each one after those that are already there.
function __confluo_list
    set -l before (commandline -ct | string replace -r '^--[a-z-]+=' '' | string replace -r '[^,]*$' '')
    printf '%s\n' $before$argv
end

# What the command confluo-NAME would offer for the rest of a line `confluo NAME ...`.
function __confluo_rest
    set -l words (commandline -opc)
    set -l name $words[2]
    set -e words[1..2]
    complete -C "confluo-$name "(string join ' ' -- (string escape -- $words) (commandline -ct))
end

complete -c confluo -n __fish_use_subcommand -f -a capture -d 'record packets from interfaces or capture files'
complete -c confluo -n __fish_use_subcommand -f -a convert -d 'convert records between formats, or into a MultiLog'
complete -c confluo -n __fish_use_subcommand -f -a flows -d 'turn packets into flow records, live or from files'
complete -c confluo -n __fish_use_subcommand -f -a retx -d 'record TCP retransmissions per socket, from the kernel'
complete -c confluo -n __fish_use_subcommand -f -a trace -d 'trace paths of flows that lose packets, with their five-tuples'
complete -c confluo -n __fish_use_subcommand -f -a replay-record -d 'record what TCP connections did, so that they can be replayed'
complete -c confluo -n __fish_use_subcommand -f -a stream -d 'send records to Kafka, and see what is in its topics'
complete -c confluo -n __fish_use_subcommand -f -a query -d 'select, aggregate and print records'
complete -c confluo -n __fish_use_subcommand -f -a top -d 'show the groups with the largest rates, every second'
complete -c confluo -n __fish_use_subcommand -f -a sql -d 'ask logs, captures, streams and archives in SQL'
complete -c confluo -n __fish_use_subcommand -f -a snapshot -d 'record one atomic snapshot of logs on many hosts'
complete -c confluo -n __fish_use_subcommand -f -a vote -d 'find links that drop packets, from paths and losses of flows'
complete -c confluo -n __fish_use_subcommand -f -a pingmesh -d 'measure latency and loss between all servers; locate faults'
complete -c confluo -n __fish_use_subcommand -f -a replay -d 'replay TCP connections exactly, explain them; replay queues'
complete -c confluo -n __fish_use_subcommand -f -a monitor -d 'evaluate triggers over sliding windows; write alerts'
complete -c confluo -n __fish_use_subcommand -f -a index -d 'add, drop and update indexes, filters, aggregates and states'
complete -c confluo -n __fish_use_subcommand -f -a topology -d 'check and join topology files, convert older ones'
complete -c confluo -n __fish_use_subcommand -f -a info -d 'summarize a log, a stream or a capture; --verify checks it'
complete -c confluo -n __fish_use_subcommand -f -a archive -d 'move older rows of a MultiLog to Parquet; queries read both'
complete -c confluo -n __fish_use_subcommand -f -a serve -d 'serve logs to queries from other hosts; ssh starts it'
complete -c confluo -n __fish_use_subcommand -f -a config -d 'print the settings and their origins'
complete -c confluo -n __fish_use_subcommand -f -a help -d 'open the manual page of a command or a topic'
complete -c confluo -n __fish_use_subcommand -f -l help
complete -c confluo -n __fish_use_subcommand -f -l version
complete -c confluo -n '__confluo_at help' -f -a 'capture convert flows retx trace replay-record stream query top sql snapshot vote pingmesh replay monitor index topology info archive serve config replay-record-run replay-record-attach stream-publish stream-unpack stream-status stream-set stream-topics stream-service stream-service-synflood stream-service-loss stream-service-tcp-rate stream-service-top stream-service-histogram vote-simulate vote-bound pingmesh-plan pingmesh-serve pingmesh-agent pingmesh-probe pingmesh-respond pingmesh-blackholes pingmesh-drops pingmesh-sla pingmesh-verdict pingmesh-simulate pingmesh-heatmap replay-diff replay-explain replay-queues replay-sample pinglist schema state multilog expr pipelines tcp telemetry'
complete -c confluo -n 'not __fish_use_subcommand; and not __confluo_at help' -f -a '(__confluo_rest)'

# command: confluo-capture
# Completion of confluo-capture for fish.  Made by completions/update from the options of the command and head.fish.

# Whether the verbs of the command line are these.
function __confluo_at
    set -l words (commandline -opc)
    set -e words[1]
    for verb in $argv
        test "$words[1]" = "$verb"
        or return 1
        set -e words[1]
    end
end

# Words with commas between them: each one after those that are already there.
function __confluo_list
    set -l before (commandline -ct | string replace -r '^--[a-z-]+=' '' | string replace -r '[^,]*$' '')
    printf '%s\n' $before$argv
end

# What the command confluo-NAME would offer for the rest of a line `confluo NAME ...`.
function __confluo_rest
    set -l words (commandline -opc)
    set -l name $words[2]
    set -e words[1..2]
    complete -C "confluo-$name "(string join ' ' -- (string escape -- $words) (commandline -ct))
end

complete -c confluo-capture -s i -l interface -x -a '(__fish_print_interfaces)' -d 'Interface to capture from (repeatable), or any.'
complete -c confluo-capture -s r -l read -r -F -d 'Capture to read (repeatable); - or none: stdin.'
complete -c confluo-capture -l netflow -x -d 'Receive NetFlow v5, v9 and IPFIX there (repeatable).'
complete -c confluo-capture -l sflow -x -d 'Receive sFlow v5 there (repeatable).'
complete -c confluo-capture -l scale-samples -d 'Multiply packets and bytes of exported records by their sampling rate.'
complete -c confluo-capture -l bpf -x -d 'Let the kernel drop packets that do not match a pcap-filter(7).'
complete -c confluo-capture -l decap -x -a 'outer inner' -d 'Use the outer or inner IP and transport fields.'
complete -c confluo-capture -l sample -x -d 'Keep every Nth flow, the same ones each time.'
complete -c confluo-capture -l sample-packets -x -d 'Keep every Nth packet.'
complete -c confluo-capture -s c -l limit -x -d 'Stop after N records.'
complete -c confluo-capture -l duration -x -d 'Stop after TIME.'
complete -c confluo-capture -s s -l snap -x -d 'Keep the first N bytes of each packet.'
complete -c confluo-capture -l offset -l no-offset -d 'Keep the position of each packet in its file (default for files).'
complete -c confluo-capture -l telemetry -d 'Keep in-band telemetry: switch_path, queue_depth, hop_time, hop_latency.'
complete -c confluo-capture -l telemetry-clock -x -a 'us ns' -d 'Read times of switches as seconds and UNIT: us (default), ns.'
complete -c confluo-capture -l digest -d 'Keep a hash of each packet, packet_digest, so that copies can be found.'
complete -c confluo-capture -l schema -r -F -a 'alert blackhole cause conn drop envelope explanation header64 histogram loss message netflow packet passage path probe queue recording retx score stage tcp_rate topic vote' -d 'Use a schema other than \'packet\'.'
complete -c confluo-capture -l follow -d 'Wait for the last file to grow.'
complete -c confluo-capture -l lanes -x -d 'With -i: capture with N threads, one lane of LOG each.  With -r: allow N writers of a new LOG.'
complete -c confluo-capture -l fanout -x -a 'hash cpu rr' -d 'How lanes share packets: hash (by flow), cpu or rr.'
complete -c confluo-capture -l ring -x -d 'Size of the packet ring of each lane (32MiB).'
complete -c confluo-capture -s p -l no-promiscuous -d 'Capture only packets to or from this machine.'
complete -c confluo-capture -l timestamps -x -a 'host hardware' -d 'Clock: host (kernel) or hardware (NIC).'
complete -c confluo-capture -l immediate -d 'Write rows after 1 ms instead of 8 ms.'
complete -c confluo-capture -l wait -x -d 'Wait TIME for an interface that vanished (10s).'
complete -c confluo-capture -s Z -l user -x -a '(__fish_complete_users)' -d 'Switch to USER once all sockets are open.'
complete -c confluo-capture -l metrics -x -d 'Serve GET /metrics for Prometheus at this address (127.0.0.1).'
complete -c confluo-capture -s D -l list-interfaces -d 'List the interfaces.'
complete -c confluo-capture -s f -l fields -x -a '(__confluo_list ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-capture -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet pcap pcapng multilog' -d 'Write table, tsv, csv, ndjson, json, stream, arrow, parquet, pcap, pcapng or multilog.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-capture -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-capture -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-capture -s w -l output -r -F -d 'Write the MultiLog LOG; or a file, by suffix or -o FORMAT.'
complete -c confluo-capture -l force -d 'Overwrite the output file.'
complete -c confluo-capture -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-capture -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-capture -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-capture -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-capture -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-capture -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-capture -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-capture -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-capture -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-capture -l append -d 'Append to LOG if it exists.'
complete -c confluo-capture -l add-columns -d 'With --append, add to LOG the fields that it lacks.'
complete -c confluo-capture -l index -x -a '(__confluo_list ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number)' -d 'Index LOG by these fields while writing.'
complete -c confluo-capture -l keep -x -d 'Remove the oldest rows of LOG: beyond 1h, beyond 10G.'
complete -c confluo-capture -l sync -x -a 'none seal batch' -d 'Sync rows to disk at: none, seal or batch.'
complete -c confluo-capture -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-capture -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-capture -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-capture -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-capture -s h -d 'Print usage, the main options and examples.'
complete -c confluo-capture -l help -d 'Print the help.'
complete -c confluo-capture -l version -d 'Print the version.'
complete -c confluo-capture -f

# command: confluo-convert
# Completion of confluo-convert for fish.  Made by completions/update from the options of the command and head.fish.

# Whether the verbs of the command line are these.
function __confluo_at
    set -l words (commandline -opc)
    set -e words[1]
    for verb in $argv
        test "$words[1]" = "$verb"
        or return 1
        set -e words[1]
    end
end

# Words with commas between them: each one after those that are already there.
function __confluo_list
    set -l before (commandline -ct | string replace -r '^--[a-z-]+=' '' | string replace -r '[^,]*$' '')
    printf '%s\n' $before$argv
end

# What the command confluo-NAME would offer for the rest of a line `confluo NAME ...`.
function __confluo_rest
    set -l words (commandline -opc)
    set -l name $words[2]
    set -e words[1..2]
    complete -C "confluo-$name "(string join ' ' -- (string escape -- $words) (commandline -ct))
end

complete -c confluo-convert -l analyze -x -a 'tcp maxseq' -d 'Add fields derived from earlier packets: tcp, or a state.'
complete -c confluo-convert -l analyze-flows -x -d 'Track at most N flows at a time (262144).'
complete -c confluo-convert -l sort-input -d 'Sort the records of files and pipes by time before they are used.'
complete -c confluo-convert -l geo -r -F -d 'Have src_country, dst_asn ... of this database, such as GeoLite2-City.mmdb (repeatable).'
complete -c confluo-convert -l schema -r -F -a 'alert blackhole cause conn drop envelope explanation header64 histogram loss message netflow packet passage path probe queue recording retx score stage tcp_rate topic vote' -d 'Read with these field types: a YAML file or a built-in name.'
complete -c confluo-convert -l rename -x -d 'Names for fields of text, Arrow and Parquet.'
complete -c confluo-convert -s c -l limit -x -d 'Stop after N records.'
complete -c confluo-convert -l source -r -F -d 'Read packets for -o pcap from this capture (repeatable).'
complete -c confluo-convert -l synthesize -d 'With -o pcap, build the headers of packets from their fields.'
complete -c confluo-convert -l to -r -F -d 'Insert the records into clickhouse://HOST[:PORT]/[DATABASE.]TABLE.'
complete -c confluo-convert -l ddl -d 'Only print the statement that makes the ClickHouse table of --to.'
complete -c confluo-convert -s i -l input-format -x -a 'tsv csv ndjson json stream arrow parquet pcap pcapng flock tshark multilog' -d 'Input format, if not detected: tsv, csv, ndjson, json, stream, arrow, parquet, pcap, pcapng, flock, tshark or multilog.'
complete -c confluo-convert -l at -r -F -d 'Read the logs of a snapshot, as of its instant.'
complete -c confluo-convert -l partial -d 'Skip hosts that cannot be reached, with a note.'
complete -c confluo-convert -l no-archive -d 'Do not read the archives of a log.'
complete -c confluo-convert -l follow -d 'Go on as records arrive, until a signal.'
complete -c confluo-convert -l group -x -d 'Share a topic with the other readers of this group.'
complete -c confluo-convert -s f -l fields -x -a '(__confluo_list ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-convert -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet pcap pcapng multilog' -d 'Write table, tsv, csv, ndjson, json, stream, arrow, parquet, pcap, pcapng or multilog.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-convert -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-convert -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-convert -s w -l output -r -F -d 'Write the MultiLog LOG; or a file, by suffix or -o FORMAT.'
complete -c confluo-convert -l force -d 'Overwrite the output file.'
complete -c confluo-convert -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-convert -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-convert -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-convert -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-convert -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-convert -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-convert -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-convert -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-convert -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-convert -l append -d 'Append to LOG if it exists.'
complete -c confluo-convert -l add-columns -d 'With --append, add to LOG the fields that it lacks.'
complete -c confluo-convert -l index -x -a '(__confluo_list ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number)' -d 'Index LOG by these fields while writing.'
complete -c confluo-convert -l keep -x -d 'Remove the oldest rows of LOG: beyond 1h, beyond 10G.'
complete -c confluo-convert -l sync -x -a 'none seal batch' -d 'Sync rows to disk at: none, seal or batch.'
complete -c confluo-convert -l anonymize -r -F -d 'Replace addresses by others, by the key in this file.'
complete -c confluo-convert -l anonymize-keep -x -d 'Leave these: mac, oui, payload, text.'
complete -c confluo-convert -l anonymize-ports -d 'With --anonymize, also replace ports.'
complete -c confluo-convert -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-convert -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-convert -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-convert -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-convert -s h -d 'Print usage, the main options and examples.'
complete -c confluo-convert -l help -d 'Print the help.'
complete -c confluo-convert -l version -d 'Print the version.'

# command: confluo-flows
# Completion of confluo-flows for fish.  Made by completions/update from the options of the command and head.fish.

# Whether the verbs of the command line are these.
function __confluo_at
    set -l words (commandline -opc)
    set -e words[1]
    for verb in $argv
        test "$words[1]" = "$verb"
        or return 1
        set -e words[1]
    end
end

# Words with commas between them: each one after those that are already there.
function __confluo_list
    set -l before (commandline -ct | string replace -r '^--[a-z-]+=' '' | string replace -r '[^,]*$' '')
    printf '%s\n' $before$argv
end

# What the command confluo-NAME would offer for the rest of a line `confluo NAME ...`.
function __confluo_rest
    set -l words (commandline -opc)
    set -l name $words[2]
    set -e words[1..2]
    complete -C "confluo-$name "(string join ' ' -- (string escape -- $words) (commandline -ct))
end

complete -c confluo-flows -s i -l interface -x -a '(__fish_print_interfaces)' -d 'Interface to capture from (repeatable), or any.'
complete -c confluo-flows -l packets -x -d 'Use only packets for which EXPR holds.'
complete -c confluo-flows -l bpf -x -d 'Let the kernel drop packets that do not match a pcap-filter(7).'
complete -c confluo-flows -l decap -x -a 'outer inner' -d 'Use the outer or inner IP and transport fields.'
complete -c confluo-flows -l ring -x -d 'Size of the packet ring of each lane (32MiB).'
complete -c confluo-flows -s p -l no-promiscuous -d 'Capture only packets to or from this machine.'
complete -c confluo-flows -l timestamps -x -a 'host hardware' -d 'Clock: host (kernel) or hardware (NIC).'
complete -c confluo-flows -l wait -x -d 'Wait TIME for an interface that vanished (10s).'
complete -c confluo-flows -l duration -x -d 'Stop after TIME.'
complete -c confluo-flows -s Z -l user -x -a '(__fish_complete_users)' -d 'Switch to USER once all sockets are open.'
complete -c confluo-flows -l max-flows -x -d 'Keep at most N flows in memory (4194304).'
complete -c confluo-flows -l input-format -x -a 'tsv csv ndjson json stream arrow parquet pcap pcapng flock tshark multilog' -d 'Input format, if not detected: tsv, csv, ndjson, json, stream, arrow, parquet, pcap, pcapng, flock, tshark or multilog.'
complete -c confluo-flows -l at -r -F -d 'Read the logs of a snapshot, as of its instant.'
complete -c confluo-flows -l partial -d 'Skip hosts that cannot be reached, with a note.'
complete -c confluo-flows -l no-archive -d 'Do not read the archives of a log.'
complete -c confluo-flows -l follow -d 'Go on as records arrive, until a signal.'
complete -c confluo-flows -l group -x -d 'Share a topic with the other readers of this group.'
complete -c confluo-flows -l idle-timeout -x -d 'End a flow TIME after its last packet.'
complete -c confluo-flows -l active-timeout -x -d 'Write a record of a flow that is TIME old.'
complete -c confluo-flows -l since -x -d 'Only records at or after TIME: 2026-11-20T10:00, @1700000000.25, 15m (ago), now.'
complete -c confluo-flows -l until -x -d 'Only records before TIME; a bare date includes that day.'
complete -c confluo-flows -s f -l fields -x -a '(__confluo_list ts last_ts duration ip_version proto src_ip dst_ip src_port dst_port conn_state history reason src_packets dst_packets src_bytes dst_bytes src_payload dst_payload src_flags dst_flags syn_rtt ack_rtt src_retx dst_retx src_ooo dst_ooo src_zero_windows dst_zero_windows src_resets dst_resets vlan tunnel vni help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-flows -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet multilog' -d 'Write table, tsv, csv, ndjson, json, stream, arrow, parquet or multilog.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-flows -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-flows -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-flows -s w -l output -r -F -d 'Write the MultiLog LOG; or a file, by suffix or -o FORMAT.'
complete -c confluo-flows -l force -d 'Overwrite the output file.'
complete -c confluo-flows -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-flows -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-flows -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-flows -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-flows -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-flows -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-flows -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-flows -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-flows -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-flows -l append -d 'Append to LOG if it exists.'
complete -c confluo-flows -l add-columns -d 'With --append, add to LOG the fields that it lacks.'
complete -c confluo-flows -l index -x -a '(__confluo_list ts last_ts duration ip_version proto src_ip dst_ip src_port dst_port conn_state history reason src_packets dst_packets src_bytes dst_bytes src_payload dst_payload src_flags dst_flags syn_rtt ack_rtt src_retx dst_retx src_ooo dst_ooo src_zero_windows dst_zero_windows src_resets dst_resets vlan tunnel vni)' -d 'Index LOG by these fields while writing.'
complete -c confluo-flows -l keep -x -d 'Remove the oldest rows of LOG: beyond 1h, beyond 10G.'
complete -c confluo-flows -l sync -x -a 'none seal batch' -d 'Sync rows to disk at: none, seal or batch.'
complete -c confluo-flows -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-flows -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-flows -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-flows -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-flows -s h -d 'Print usage, the main options and examples.'
complete -c confluo-flows -l help -d 'Print the help.'
complete -c confluo-flows -l version -d 'Print the version.'

# command: confluo-retx
# Completion of confluo-retx for fish.  Made by completions/update from the options of the command and head.fish.

# Whether the verbs of the command line are these.
function __confluo_at
    set -l words (commandline -opc)
    set -e words[1]
    for verb in $argv
        test "$words[1]" = "$verb"
        or return 1
        set -e words[1]
    end
end

# Words with commas between them: each one after those that are already there.
function __confluo_list
    set -l before (commandline -ct | string replace -r '^--[a-z-]+=' '' | string replace -r '[^,]*$' '')
    printf '%s\n' $before$argv
end

# What the command confluo-NAME would offer for the rest of a line `confluo NAME ...`.
function __confluo_rest
    set -l words (commandline -opc)
    set -l name $words[2]
    set -e words[1..2]
    complete -C "confluo-$name "(string join ' ' -- (string escape -- $words) (commandline -ct))
end

complete -c confluo-retx -l follow -d 'Record losses as they happen, until a signal.'
complete -c confluo-retx -l all -d 'Include sockets without losses.'
complete -c confluo-retx -l interval -x -d 'Poll all sockets every TIME (1s; 10s when traced).'
complete -c confluo-retx -l trace -x -a 'auto always never' -d 'Trace single retransmissions: auto, always or never.'
complete -c confluo-retx -l netns -x -d 'Use this network namespace: a name or a path.'
complete -c confluo-retx -l flows -x -d 'Keep at most N sockets (65536).'
complete -c confluo-retx -l cpu -x -d 'Use at most SHARE of one core (3%).'
complete -c confluo-retx -l duration -x -d 'Stop after TIME.'
complete -c confluo-retx -s c -l limit -x -d 'Stop after N records.'
complete -c confluo-retx -s Z -l user -x -a '(__fish_complete_users)' -d 'Switch to USER once all sockets are open.'
complete -c confluo-retx -s f -l fields -x -a '(__confluo_list ts event notes state ip_version proto src_ip dst_ip src_port dst_port sent lost retrans dsack events timeouts rtt rtt_var rtt_min cwnd bytes cookie uid help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-retx -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet multilog' -d 'Write table, tsv, csv, ndjson, json, stream, arrow, parquet or multilog.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-retx -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-retx -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-retx -s w -l output -r -F -d 'Write the MultiLog LOG; or a file, by suffix or -o FORMAT.'
complete -c confluo-retx -l force -d 'Overwrite the output file.'
complete -c confluo-retx -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-retx -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-retx -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-retx -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-retx -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-retx -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-retx -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-retx -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-retx -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-retx -l append -d 'Append to LOG if it exists.'
complete -c confluo-retx -l add-columns -d 'With --append, add to LOG the fields that it lacks.'
complete -c confluo-retx -l index -x -a '(__confluo_list ts event notes state ip_version proto src_ip dst_ip src_port dst_port sent lost retrans dsack events timeouts rtt rtt_var rtt_min cwnd bytes cookie uid)' -d 'Index LOG by these fields while writing.'
complete -c confluo-retx -l keep -x -d 'Remove the oldest rows of LOG: beyond 1h, beyond 10G.'
complete -c confluo-retx -l sync -x -a 'none seal batch' -d 'Sync rows to disk at: none, seal or batch.'
complete -c confluo-retx -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-retx -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-retx -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-retx -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-retx -s h -d 'Print usage, the main options and examples.'
complete -c confluo-retx -l help -d 'Print the help.'
complete -c confluo-retx -l version -d 'Print the version.'
complete -c confluo-retx -f

# command: confluo-trace
# Completion of confluo-trace for fish.  Made by completions/update from the options of the command and head.fish.

# Whether the verbs of the command line are these.
function __confluo_at
    set -l words (commandline -opc)
    set -e words[1]
    for verb in $argv
        test "$words[1]" = "$verb"
        or return 1
        set -e words[1]
    end
end

# Words with commas between them: each one after those that are already there.
function __confluo_list
    set -l before (commandline -ct | string replace -r '^--[a-z-]+=' '' | string replace -r '[^,]*$' '')
    printf '%s\n' $before$argv
end

# What the command confluo-NAME would offer for the rest of a line `confluo NAME ...`.
function __confluo_rest
    set -l words (commandline -opc)
    set -l name $words[2]
    set -e words[1..2]
    complete -C "confluo-$name "(string join ' ' -- (string escape -- $words) (commandline -ct))
end

complete -c confluo-trace -l from -r -F -d 'Records of flows: MultiLog, stream, ... (repeatable); - is stdin.'
complete -c confluo-trace -l follow -d 'Continue as the MultiLog or topic grows, until a signal.'
complete -c confluo-trace -l epoch -x -d 'Trace a flow once per TIME (30s).'
complete -c confluo-trace -l healthy -d 'Also write flows without losses; they have no path.'
complete -c confluo-trace -l rate -x -d 'Traceroutes per second (from --topology, else 10).'
complete -c confluo-trace -l burst -x -d 'Traceroutes that may start at once (--rate times 100 ms).'
complete -c confluo-trace -l topology -r -F -d 'Topology file: names, ToRs, and the rate that switches allow.'
complete -c confluo-trace -l bound -x -a 'full paper' -d 'Rate from the topology: full, or paper (Theorem 1 as printed).'
complete -c confluo-trace -l t-max -x -d 'ICMP errors per second that a switch may send (100).'
complete -c confluo-trace -l alias -r -F -d 'Lines \'ADDRESS NAME\': assign addresses to switches.'
complete -c confluo-trace -l map -r -F -d 'Lines \'VIP[:PORT] DIP[:PORT]\': real destinations.'
complete -c confluo-trace -l map-command -x -d 'Command that returns the real destination of each flow.'
complete -c confluo-trace -l vip -x -d 'Look up only these destinations (repeatable).'
complete -c confluo-trace -l only -x -d 'Send probes to these addresses only (repeatable).'
complete -c confluo-trace -l allow -x -a 'loopback broadcast multicast foreign' -d 'Also probe loopback, broadcast, multicast or foreign (repeatable).'
complete -c confluo-trace -l flows -x -d 'Keep at most N flows per epoch (262144).'
complete -c confluo-trace -l tries -x -d 'Maximum probes per hop (2).'
complete -c confluo-trace -l timeout -x -d 'Wait TIME for the first answers (300ms); later, as measured.'
complete -c confluo-trace -s Z -l user -x -a '(__fish_complete_users)' -d 'Switch to USER once all sockets are open.'
complete -c confluo-trace -s i -l input-format -x -a 'tsv csv ndjson json stream arrow parquet pcap pcapng flock tshark multilog' -d 'Input format, if not detected: tsv, csv, ndjson, json, stream, arrow, parquet, pcap, pcapng, flock, tshark or multilog.'
complete -c confluo-trace -l since -x -d 'Only records at or after TIME: 2026-11-20T10:00, @1700000000.25, 15m (ago), now.'
complete -c confluo-trace -l duration -x -d 'Stop after TIME.'
complete -c confluo-trace -s f -l fields -x -a '(__confluo_list ts kind notes ip_version proto src_ip dst_ip src_port dst_port sent lost retrans dsack rtt hops path path6 src_tor dst_tor link_a link_b rate help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-trace -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet multilog' -d 'Write table, tsv, csv, ndjson, json, stream, arrow, parquet or multilog.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-trace -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-trace -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-trace -s w -l output -r -F -d 'Write the MultiLog LOG; or a file, by suffix or -o FORMAT.'
complete -c confluo-trace -l force -d 'Overwrite the output file.'
complete -c confluo-trace -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-trace -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-trace -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-trace -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-trace -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-trace -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-trace -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-trace -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-trace -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-trace -l append -d 'Append to LOG if it exists.'
complete -c confluo-trace -l add-columns -d 'With --append, add to LOG the fields that it lacks.'
complete -c confluo-trace -l index -x -a '(__confluo_list ts kind notes ip_version proto src_ip dst_ip src_port dst_port sent lost retrans dsack rtt hops path path6 src_tor dst_tor link_a link_b rate)' -d 'Index LOG by these fields while writing.'
complete -c confluo-trace -l keep -x -d 'Remove the oldest rows of LOG: beyond 1h, beyond 10G.'
complete -c confluo-trace -l sync -x -a 'none seal batch' -d 'Sync rows to disk at: none, seal or batch.'
complete -c confluo-trace -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-trace -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-trace -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-trace -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-trace -s h -d 'Print usage, the main options and examples.'
complete -c confluo-trace -l help -d 'Print the help.'
complete -c confluo-trace -l version -d 'Print the version.'
complete -c confluo-trace -f

# command: confluo-replay-record
# Completion of confluo-replay-record for fish.  Made by completions/update from the options of the command and head.fish.

# Whether the verbs of the command line are these.
function __confluo_at
    set -l words (commandline -opc)
    set -e words[1]
    for verb in $argv
        test "$words[1]" = "$verb"
        or return 1
        set -e words[1]
    end
end

# Words with commas between them: each one after those that are already there.
function __confluo_list
    set -l before (commandline -ct | string replace -r '^--[a-z-]+=' '' | string replace -r '[^,]*$' '')
    printf '%s\n' $before$argv
end

# What the command confluo-NAME would offer for the rest of a line `confluo NAME ...`.
function __confluo_rest
    set -l words (commandline -opc)
    set -l name $words[2]
    set -e words[1..2]
    complete -C "confluo-$name "(string join ' ' -- (string escape -- $words) (commandline -ct))
end

complete -c confluo-replay-record -n 'not __confluo_at run; and not __confluo_at attach' -f -a run -d 'run a command and record its connections'
complete -c confluo-replay-record -n 'not __confluo_at run; and not __confluo_at attach' -f -a attach -d 'record the connections of a running service'
complete -c confluo-replay-record -n 'not __confluo_at run; and not __confluo_at attach' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-replay-record -n 'not __confluo_at run; and not __confluo_at attach' -l help -d 'Print the help.'
complete -c confluo-replay-record -n 'not __confluo_at run; and not __confluo_at attach' -l version -d 'Print the version.'
complete -c confluo-replay-record -n 'not __confluo_at run; and not __confluo_at attach' -f
complete -c confluo-replay-record -n '__confluo_at run' -l netns -x -d 'Run it in this network namespace.'
complete -c confluo-replay-record -n '__confluo_at run' -l bridge -x -d 'Join the new namespace to this bridge.'
complete -c confluo-replay-record -n '__confluo_at run' -l address -x -d 'Address in the new namespace.'
complete -c confluo-replay-record -n '__confluo_at run' -l gateway -x -d 'Default route of the new namespace.'
complete -c confluo-replay-record -n '__confluo_at run' -l grade -x -a 'strict default' -d 'Settings of TCP: strict or default (strict).'
complete -c confluo-replay-record -n '__confluo_at run' -l level -x -a 'signals headers' -d 'What to record: signals or headers (signals).'
complete -c confluo-replay-record -n '__confluo_at run' -l source -x -a 'tracefs bpf' -d 'How to record: tracefs or bpf (tracefs).'
complete -c confluo-replay-record -n '__confluo_at run' -s f -l fields -x -a '(__confluo_list ts kind notes ip_version proto src_ip dst_ip src_port dst_port cookie role count step number number_step tx tx_step rx rx_step call bytes asked flags value name text timer ip_id segments gap digest seq ack len tcp_flags window sack ecn tsval tsecr snd_una snd_nxt cwnd ssthresh srtt rcv_wnd snd_wnd ca_state gaps tx_gaps rx_gaps number_gaps sizes marks help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-replay-record -n '__confluo_at run' -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet multilog' -d 'Write table, tsv, csv, ndjson, json, stream, arrow, parquet or multilog.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-replay-record -n '__confluo_at run' -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-replay-record -n '__confluo_at run' -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-replay-record -n '__confluo_at run' -s w -l output -r -F -d 'Write the MultiLog LOG; or a file, by suffix or -o FORMAT.'
complete -c confluo-replay-record -n '__confluo_at run' -l force -d 'Overwrite the output file.'
complete -c confluo-replay-record -n '__confluo_at run' -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-replay-record -n '__confluo_at run' -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-replay-record -n '__confluo_at run' -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-replay-record -n '__confluo_at run' -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-replay-record -n '__confluo_at run' -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-replay-record -n '__confluo_at run' -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-replay-record -n '__confluo_at run' -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-replay-record -n '__confluo_at run' -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-replay-record -n '__confluo_at run' -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-replay-record -n '__confluo_at run' -l append -d 'Append to LOG if it exists.'
complete -c confluo-replay-record -n '__confluo_at run' -l add-columns -d 'With --append, add to LOG the fields that it lacks.'
complete -c confluo-replay-record -n '__confluo_at run' -l index -x -a '(__confluo_list ts kind notes ip_version proto src_ip dst_ip src_port dst_port cookie role count step number number_step tx tx_step rx rx_step call bytes asked flags value name text timer ip_id segments gap digest seq ack len tcp_flags window sack ecn tsval tsecr snd_una snd_nxt cwnd ssthresh srtt rcv_wnd snd_wnd ca_state gaps tx_gaps rx_gaps number_gaps sizes marks)' -d 'Index LOG by these fields while writing.'
complete -c confluo-replay-record -n '__confluo_at run' -l keep -x -d 'Remove the oldest rows of LOG: beyond 1h, beyond 10G.'
complete -c confluo-replay-record -n '__confluo_at run' -l sync -x -a 'none seal batch' -d 'Sync rows to disk at: none, seal or batch.'
complete -c confluo-replay-record -n '__confluo_at run' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-replay-record -n '__confluo_at run' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-replay-record -n '__confluo_at run' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-replay-record -n '__confluo_at run' -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-replay-record -n '__confluo_at run' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-replay-record -n '__confluo_at run' -l help -d 'Print the help.'
complete -c confluo-replay-record -n '__confluo_at run' -l version -d 'Print the version.'
complete -c confluo-replay-record -n '__confluo_at attach' -l port -x -d 'Connections with this port; repeatable.'
complete -c confluo-replay-record -n '__confluo_at attach' -s i -l interface -x -a '(__fish_print_interfaces)' -d 'Their interface (any).'
complete -c confluo-replay-record -n '__confluo_at attach' -l level -x -a 'signals headers' -d 'What to record: signals or headers (signals).'
complete -c confluo-replay-record -n '__confluo_at attach' -l source -x -a 'tracefs bpf' -d 'How to record: tracefs or bpf (tracefs).'
complete -c confluo-replay-record -n '__confluo_at attach' -l netns -x -d 'Record in this network namespace.'
complete -c confluo-replay-record -n '__confluo_at attach' -l duration -x -d 'Stop after TIME.'
complete -c confluo-replay-record -n '__confluo_at attach' -s f -l fields -x -a '(__confluo_list ts kind notes ip_version proto src_ip dst_ip src_port dst_port cookie role count step number number_step tx tx_step rx rx_step call bytes asked flags value name text timer ip_id segments gap digest seq ack len tcp_flags window sack ecn tsval tsecr snd_una snd_nxt cwnd ssthresh srtt rcv_wnd snd_wnd ca_state gaps tx_gaps rx_gaps number_gaps sizes marks help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-replay-record -n '__confluo_at attach' -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet multilog' -d 'Write table, tsv, csv, ndjson, json, stream, arrow, parquet or multilog.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-replay-record -n '__confluo_at attach' -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-replay-record -n '__confluo_at attach' -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-replay-record -n '__confluo_at attach' -s w -l output -r -F -d 'Write the MultiLog LOG; or a file, by suffix or -o FORMAT.'
complete -c confluo-replay-record -n '__confluo_at attach' -l force -d 'Overwrite the output file.'
complete -c confluo-replay-record -n '__confluo_at attach' -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-replay-record -n '__confluo_at attach' -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-replay-record -n '__confluo_at attach' -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-replay-record -n '__confluo_at attach' -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-replay-record -n '__confluo_at attach' -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-replay-record -n '__confluo_at attach' -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-replay-record -n '__confluo_at attach' -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-replay-record -n '__confluo_at attach' -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-replay-record -n '__confluo_at attach' -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-replay-record -n '__confluo_at attach' -l append -d 'Append to LOG if it exists.'
complete -c confluo-replay-record -n '__confluo_at attach' -l add-columns -d 'With --append, add to LOG the fields that it lacks.'
complete -c confluo-replay-record -n '__confluo_at attach' -l index -x -a '(__confluo_list ts kind notes ip_version proto src_ip dst_ip src_port dst_port cookie role count step number number_step tx tx_step rx rx_step call bytes asked flags value name text timer ip_id segments gap digest seq ack len tcp_flags window sack ecn tsval tsecr snd_una snd_nxt cwnd ssthresh srtt rcv_wnd snd_wnd ca_state gaps tx_gaps rx_gaps number_gaps sizes marks)' -d 'Index LOG by these fields while writing.'
complete -c confluo-replay-record -n '__confluo_at attach' -l keep -x -d 'Remove the oldest rows of LOG: beyond 1h, beyond 10G.'
complete -c confluo-replay-record -n '__confluo_at attach' -l sync -x -a 'none seal batch' -d 'Sync rows to disk at: none, seal or batch.'
complete -c confluo-replay-record -n '__confluo_at attach' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-replay-record -n '__confluo_at attach' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-replay-record -n '__confluo_at attach' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-replay-record -n '__confluo_at attach' -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-replay-record -n '__confluo_at attach' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-replay-record -n '__confluo_at attach' -l help -d 'Print the help.'
complete -c confluo-replay-record -n '__confluo_at attach' -l version -d 'Print the version.'
complete -c confluo-replay-record -n '__confluo_at attach' -f

# command: confluo-stream
# Completion of confluo-stream for fish.  Made by completions/update from the options of the command and head.fish.

# Whether the verbs of the command line are these.
function __confluo_at
    set -l words (commandline -opc)
    set -e words[1]
    for verb in $argv
        test "$words[1]" = "$verb"
        or return 1
        set -e words[1]
    end
end

# Words with commas between them: each one after those that are already there.
function __confluo_list
    set -l before (commandline -ct | string replace -r '^--[a-z-]+=' '' | string replace -r '[^,]*$' '')
    printf '%s\n' $before$argv
end

# What the command confluo-NAME would offer for the rest of a line `confluo NAME ...`.
function __confluo_rest
    set -l words (commandline -opc)
    set -l name $words[2]
    set -e words[1..2]
    complete -C "confluo-$name "(string join ' ' -- (string escape -- $words) (commandline -ct))
end

complete -c confluo-stream -n 'not __confluo_at publish; and not __confluo_at unpack; and not __confluo_at status; and not __confluo_at set; and not __confluo_at topics; and not __confluo_at service' -f -a publish -d 'send records to a topic'
complete -c confluo-stream -n 'not __confluo_at publish; and not __confluo_at unpack; and not __confluo_at status; and not __confluo_at set; and not __confluo_at topics; and not __confluo_at service' -f -a unpack -d 'print the records in messages'
complete -c confluo-stream -n 'not __confluo_at publish; and not __confluo_at unpack; and not __confluo_at status; and not __confluo_at set; and not __confluo_at topics; and not __confluo_at service' -f -a status -d 'show where the records of a run are'
complete -c confluo-stream -n 'not __confluo_at publish; and not __confluo_at unpack; and not __confluo_at status; and not __confluo_at set; and not __confluo_at topics; and not __confluo_at service' -f -a set -d 'give a run other flows'
complete -c confluo-stream -n 'not __confluo_at publish; and not __confluo_at unpack; and not __confluo_at status; and not __confluo_at set; and not __confluo_at topics; and not __confluo_at service' -f -a topics -d 'list the topics of a cluster, and what is in them'
complete -c confluo-stream -n 'not __confluo_at publish; and not __confluo_at unpack; and not __confluo_at status; and not __confluo_at set; and not __confluo_at topics; and not __confluo_at service' -f -a service -d 'find floods, losses and slow flows in a stream'
complete -c confluo-stream -n 'not __confluo_at publish; and not __confluo_at unpack; and not __confluo_at status; and not __confluo_at set; and not __confluo_at topics; and not __confluo_at service' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-stream -n 'not __confluo_at publish; and not __confluo_at unpack; and not __confluo_at status; and not __confluo_at set; and not __confluo_at topics; and not __confluo_at service' -l help -d 'Print the help.'
complete -c confluo-stream -n 'not __confluo_at publish; and not __confluo_at unpack; and not __confluo_at status; and not __confluo_at set; and not __confluo_at topics; and not __confluo_at service' -l version -d 'Print the version.'
complete -c confluo-stream -n 'not __confluo_at publish; and not __confluo_at unpack; and not __confluo_at status; and not __confluo_at set; and not __confluo_at topics; and not __confluo_at service' -f
complete -c confluo-stream -n '__confluo_at publish' -s r -l read -r -F -d 'Read INPUT (repeatable); all operands form EXPR.'
complete -c confluo-stream -n '__confluo_at publish' -l to -r -F -d 'kafka://HOST:PORT/TOPIC, clickhouse://HOST/TABLE, unix:PATH, FILE.messages or -.'
complete -c confluo-stream -n '__confluo_at publish' -l follow -d 'Go on with what is added to the log, until a signal.'
complete -c confluo-stream -n '__confluo_at publish' -l create -x -d 'Make the topic, with N partitions.'
complete -c confluo-stream -n '__confluo_at publish' -s f -l fields -x -a '(__confluo_list ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-stream -n '__confluo_at publish' -l codec -x -a 'none lz4 zstd snappy' -d 'Compress: none, lz4, zstd, snappy (none).'
complete -c confluo-stream -n '__confluo_at publish' -l size -x -d 'Aim at messages of this size (64Ki; ClickHouse: 32Mi).'
complete -c confluo-stream -n '__confluo_at publish' -l linger -x -d 'A record waits at most TIME for others (20ms; ClickHouse: 1s).'
complete -c confluo-stream -n '__confluo_at publish' -s X -x -d 'Setting of librdkafka (repeatable); VALUE may be @FILE or env:NAME, and secrets must be.'
complete -c confluo-stream -n '__confluo_at publish' -s c -l limit -x -d 'Stop after N records.'
complete -c confluo-stream -n '__confluo_at publish' -l ddl -d 'Only print the statement that makes the ClickHouse table of --to.'
complete -c confluo-stream -n '__confluo_at publish' -l name -x -d 'Name of the run, for status and set (that of its input).'
complete -c confluo-stream -n '__confluo_at publish' -l metrics -x -d 'Serve GET /metrics for Prometheus at this address (127.0.0.1).'
complete -c confluo-stream -n '__confluo_at publish' -l input-format -x -a 'tsv csv ndjson json stream arrow parquet pcap pcapng flock tshark multilog' -d 'Input format, if not detected: tsv, csv, ndjson, json, stream, arrow, parquet, pcap, pcapng, flock, tshark or multilog.'
complete -c confluo-stream -n '__confluo_at publish' -l at -r -F -d 'Read the logs of a snapshot, as of its instant.'
complete -c confluo-stream -n '__confluo_at publish' -l partial -d 'Skip hosts that cannot be reached, with a note.'
complete -c confluo-stream -n '__confluo_at publish' -l no-archive -d 'Do not read the archives of a log.'
complete -c confluo-stream -n '__confluo_at publish' -s i -l interface -x -a '(__fish_print_interfaces)' -d 'Interface to capture from (repeatable), or any.'
complete -c confluo-stream -n '__confluo_at publish' -l flows -r -F -d 'The flows: what belongs to each, its functions, its topic.'
complete -c confluo-stream -n '__confluo_at publish' -l workers -x -d 'Run functions in N threads (1).'
complete -c confluo-stream -n '__confluo_at publish' -l lanes -x -d 'Capture with N threads (1).'
complete -c confluo-stream -n '__confluo_at publish' -l bpf -x -d 'Let the kernel drop packets that do not match a pcap-filter(7).'
complete -c confluo-stream -n '__confluo_at publish' -l decap -x -a 'outer inner' -d 'Use the outer or inner IP and transport fields.'
complete -c confluo-stream -n '__confluo_at publish' -l fanout -x -a 'hash cpu rr' -d 'How lanes share packets: hash (by flow), cpu or rr.'
complete -c confluo-stream -n '__confluo_at publish' -l ring -x -d 'Size of the packet ring of each lane (32MiB).'
complete -c confluo-stream -n '__confluo_at publish' -s p -l no-promiscuous -d 'Capture only packets to or from this machine.'
complete -c confluo-stream -n '__confluo_at publish' -l timestamps -x -a 'host hardware' -d 'Clock: host (kernel) or hardware (NIC).'
complete -c confluo-stream -n '__confluo_at publish' -l immediate -d 'Write rows after 1 ms instead of 8 ms.'
complete -c confluo-stream -n '__confluo_at publish' -l wait -x -d 'Wait TIME for an interface that vanished (10s).'
complete -c confluo-stream -n '__confluo_at publish' -l duration -x -d 'Stop after TIME.'
complete -c confluo-stream -n '__confluo_at publish' -s Z -l user -x -a '(__fish_complete_users)' -d 'Switch to USER once all sockets are open.'
complete -c confluo-stream -n '__confluo_at publish' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-stream -n '__confluo_at publish' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-stream -n '__confluo_at publish' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-stream -n '__confluo_at publish' -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-stream -n '__confluo_at publish' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-stream -n '__confluo_at publish' -l help -d 'Print the help.'
complete -c confluo-stream -n '__confluo_at publish' -l version -d 'Print the version.'
complete -c confluo-stream -n '__confluo_at unpack' -l envelope -d 'Print the envelope of each message instead.'
complete -c confluo-stream -n '__confluo_at unpack' -s f -l fields -x -a '(__confluo_list ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-stream -n '__confluo_at unpack' -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet' -d 'Write table, tsv, csv, ndjson, json, stream, arrow or parquet.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-stream -n '__confluo_at unpack' -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-stream -n '__confluo_at unpack' -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-stream -n '__confluo_at unpack' -s w -l output -r -F -d 'Write to FILE, atomically; - is stdout.'
complete -c confluo-stream -n '__confluo_at unpack' -l force -d 'Overwrite the output file.'
complete -c confluo-stream -n '__confluo_at unpack' -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-stream -n '__confluo_at unpack' -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-stream -n '__confluo_at unpack' -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-stream -n '__confluo_at unpack' -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-stream -n '__confluo_at unpack' -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-stream -n '__confluo_at unpack' -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-stream -n '__confluo_at unpack' -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-stream -n '__confluo_at unpack' -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-stream -n '__confluo_at unpack' -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-stream -n '__confluo_at unpack' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-stream -n '__confluo_at unpack' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-stream -n '__confluo_at unpack' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-stream -n '__confluo_at unpack' -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-stream -n '__confluo_at unpack' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-stream -n '__confluo_at unpack' -l help -d 'Print the help.'
complete -c confluo-stream -n '__confluo_at unpack' -l version -d 'Print the version.'
complete -c confluo-stream -n '__confluo_at status' -l every -x -d 'Time between two looks: rates are of it (1s).'
complete -c confluo-stream -n '__confluo_at status' -s f -l fields -x -a '(__confluo_list ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-stream -n '__confluo_at status' -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet' -d 'Write table, tsv, csv, ndjson, json, stream, arrow or parquet.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-stream -n '__confluo_at status' -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-stream -n '__confluo_at status' -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-stream -n '__confluo_at status' -s w -l output -r -F -d 'Write to FILE, atomically; - is stdout.'
complete -c confluo-stream -n '__confluo_at status' -l force -d 'Overwrite the output file.'
complete -c confluo-stream -n '__confluo_at status' -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-stream -n '__confluo_at status' -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-stream -n '__confluo_at status' -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-stream -n '__confluo_at status' -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-stream -n '__confluo_at status' -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-stream -n '__confluo_at status' -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-stream -n '__confluo_at status' -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-stream -n '__confluo_at status' -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-stream -n '__confluo_at status' -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-stream -n '__confluo_at status' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-stream -n '__confluo_at status' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-stream -n '__confluo_at status' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-stream -n '__confluo_at status' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-stream -n '__confluo_at status' -l help -d 'Print the help.'
complete -c confluo-stream -n '__confluo_at status' -l version -d 'Print the version.'
complete -c confluo-stream -n '__confluo_at status' -f
complete -c confluo-stream -n '__confluo_at set' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-stream -n '__confluo_at set' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-stream -n '__confluo_at set' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-stream -n '__confluo_at set' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-stream -n '__confluo_at set' -l help -d 'Print the help.'
complete -c confluo-stream -n '__confluo_at set' -l version -d 'Print the version.'
complete -c confluo-stream -n '__confluo_at topics' -l group -x -d 'Also print how far this consumer group is behind.'
complete -c confluo-stream -n '__confluo_at topics' -s X -x -d 'Setting of librdkafka (repeatable); VALUE may be @FILE or env:NAME, and secrets must be.'
complete -c confluo-stream -n '__confluo_at topics' -s f -l fields -x -a '(__confluo_list ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-stream -n '__confluo_at topics' -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet' -d 'Write table, tsv, csv, ndjson, json, stream, arrow or parquet.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-stream -n '__confluo_at topics' -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-stream -n '__confluo_at topics' -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-stream -n '__confluo_at topics' -s w -l output -r -F -d 'Write to FILE, atomically; - is stdout.'
complete -c confluo-stream -n '__confluo_at topics' -l force -d 'Overwrite the output file.'
complete -c confluo-stream -n '__confluo_at topics' -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-stream -n '__confluo_at topics' -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-stream -n '__confluo_at topics' -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-stream -n '__confluo_at topics' -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-stream -n '__confluo_at topics' -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-stream -n '__confluo_at topics' -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-stream -n '__confluo_at topics' -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-stream -n '__confluo_at topics' -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-stream -n '__confluo_at topics' -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-stream -n '__confluo_at topics' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-stream -n '__confluo_at topics' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-stream -n '__confluo_at topics' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-stream -n '__confluo_at topics' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-stream -n '__confluo_at topics' -l help -d 'Print the help.'
complete -c confluo-stream -n '__confluo_at topics' -l version -d 'Print the version.'
complete -c confluo-stream -n '__confluo_at topics' -f
complete -c confluo-stream -n '__confluo_at service; and not __confluo_at service synflood; and not __confluo_at service loss; and not __confluo_at service tcp-rate; and not __confluo_at service top; and not __confluo_at service histogram' -f -a synflood -d 'report SYN floods as alerts'
complete -c confluo-stream -n '__confluo_at service; and not __confluo_at service synflood; and not __confluo_at service loss; and not __confluo_at service tcp-rate; and not __confluo_at service top; and not __confluo_at service histogram' -f -a loss -d 'measure loss, delay and reordering between two points'
complete -c confluo-stream -n '__confluo_at service; and not __confluo_at service synflood; and not __confluo_at service loss; and not __confluo_at service tcp-rate; and not __confluo_at service top; and not __confluo_at service histogram' -f -a tcp-rate -d 'report throughput, retransmissions and round trips of TCP flows'
complete -c confluo-stream -n '__confluo_at service; and not __confluo_at service synflood; and not __confluo_at service loss; and not __confluo_at service tcp-rate; and not __confluo_at service top; and not __confluo_at service histogram' -f -a top -d 'report the largest senders, ports or flows'
complete -c confluo-stream -n '__confluo_at service; and not __confluo_at service synflood; and not __confluo_at service loss; and not __confluo_at service tcp-rate; and not __confluo_at service top; and not __confluo_at service histogram' -f -a histogram -d 'report how the values of a field are distributed'
complete -c confluo-stream -n '__confluo_at service; and not __confluo_at service synflood; and not __confluo_at service loss; and not __confluo_at service tcp-rate; and not __confluo_at service top; and not __confluo_at service histogram' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-stream -n '__confluo_at service; and not __confluo_at service synflood; and not __confluo_at service loss; and not __confluo_at service tcp-rate; and not __confluo_at service top; and not __confluo_at service histogram' -l help -d 'Print the help.'
complete -c confluo-stream -n '__confluo_at service; and not __confluo_at service synflood; and not __confluo_at service loss; and not __confluo_at service tcp-rate; and not __confluo_at service top; and not __confluo_at service histogram' -l version -d 'Print the version.'
complete -c confluo-stream -n '__confluo_at service; and not __confluo_at service synflood; and not __confluo_at service loss; and not __confluo_at service tcp-rate; and not __confluo_at service top; and not __confluo_at service histogram' -f
complete -c confluo-stream -n '__confluo_at service synflood' -l threshold -x -d 'Half-open connections within TIME (1000/10s).'
complete -c confluo-stream -n '__confluo_at service synflood' -l ratio -x -d 'Least share of half-open among all attempts (50%).'
complete -c confluo-stream -n '__confluo_at service synflood' -l clear -x -d 'An alert ends below SHARE of threshold or ratio (50%).'
complete -c confluo-stream -n '__confluo_at service synflood' -l timeout -x -d 'Half-open: no ACK of the client within TIME (3s).'
complete -c confluo-stream -n '__confluo_at service synflood' -l from -r -F -d 'Read INPUT (repeatable); all operands form EXPR.'
complete -c confluo-stream -n '__confluo_at service synflood' -l lateness -x -d 'Wait for records that are up to TIME late (1s).'
complete -c confluo-stream -n '__confluo_at service synflood' -l to -r -F -d 'Send results to kafka://HOST:PORT/NAME, clickhouse://..., unix:PATH or FILE.messages.'
complete -c confluo-stream -n '__confluo_at service synflood' -l ddl -d 'Only print the statement that makes the ClickHouse table of --to.'
complete -c confluo-stream -n '__confluo_at service synflood' -s X -x -d 'Setting of librdkafka (repeatable); VALUE may be @FILE or env:NAME, and secrets must be.'
complete -c confluo-stream -n '__confluo_at service synflood' -l follow -d 'Go on with what is added to the input, until a signal.'
complete -c confluo-stream -n '__confluo_at service synflood' -l name -x -d 'Name of the run, for status and set (that of its input).'
complete -c confluo-stream -n '__confluo_at service synflood' -l metrics -x -d 'Serve GET /metrics for Prometheus at this address (127.0.0.1).'
complete -c confluo-stream -n '__confluo_at service synflood' -s i -l input-format -x -a 'tsv csv ndjson json stream arrow parquet pcap pcapng flock tshark multilog' -d 'Input format, if not detected: tsv, csv, ndjson, json, stream, arrow, parquet, pcap, pcapng, flock, tshark or multilog.'
complete -c confluo-stream -n '__confluo_at service synflood' -l at -r -F -d 'Read the logs of a snapshot, as of its instant.'
complete -c confluo-stream -n '__confluo_at service synflood' -l partial -d 'Skip hosts that cannot be reached, with a note.'
complete -c confluo-stream -n '__confluo_at service synflood' -l no-archive -d 'Do not read the archives of a log.'
complete -c confluo-stream -n '__confluo_at service synflood' -l since -x -d 'Only records at or after TIME: 2026-11-20T10:00, @1700000000.25, 15m (ago), now.'
complete -c confluo-stream -n '__confluo_at service synflood' -l until -x -d 'Only records before TIME; a bare date includes that day.'
complete -c confluo-stream -n '__confluo_at service synflood' -s f -l fields -x -a '(__confluo_list ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-stream -n '__confluo_at service synflood' -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet multilog' -d 'Write table, tsv, csv, ndjson, json, stream, arrow, parquet or multilog.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-stream -n '__confluo_at service synflood' -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-stream -n '__confluo_at service synflood' -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-stream -n '__confluo_at service synflood' -s w -l output -r -F -d 'Write the MultiLog LOG; or a file, by suffix or -o FORMAT.'
complete -c confluo-stream -n '__confluo_at service synflood' -l force -d 'Overwrite the output file.'
complete -c confluo-stream -n '__confluo_at service synflood' -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-stream -n '__confluo_at service synflood' -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-stream -n '__confluo_at service synflood' -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-stream -n '__confluo_at service synflood' -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-stream -n '__confluo_at service synflood' -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-stream -n '__confluo_at service synflood' -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-stream -n '__confluo_at service synflood' -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-stream -n '__confluo_at service synflood' -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-stream -n '__confluo_at service synflood' -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-stream -n '__confluo_at service synflood' -l append -d 'Append to LOG if it exists.'
complete -c confluo-stream -n '__confluo_at service synflood' -l add-columns -d 'With --append, add to LOG the fields that it lacks.'
complete -c confluo-stream -n '__confluo_at service synflood' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-stream -n '__confluo_at service synflood' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-stream -n '__confluo_at service synflood' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-stream -n '__confluo_at service synflood' -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-stream -n '__confluo_at service synflood' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-stream -n '__confluo_at service synflood' -l help -d 'Print the help.'
complete -c confluo-stream -n '__confluo_at service synflood' -l version -d 'Print the version.'
complete -c confluo-stream -n '__confluo_at service loss' -l window -x -d 'Report each TIME apart; 0: all at once (10s).'
complete -c confluo-stream -n '__confluo_at service loss' -l packets -d 'Output a record for each packet instead.'
complete -c confluo-stream -n '__confluo_at service loss' -l points -x -d 'Hosts A and B in one topic, to which both publish.'
complete -c confluo-stream -n '__confluo_at service loss' -l offset -x -d 'The clock of B is ahead by TIME, e.g. 3.2ms, -40us (0).'
complete -c confluo-stream -n '__confluo_at service loss' -l timeout -x -d 'Lost: not at the other point within TIME (2s).'
complete -c confluo-stream -n '__confluo_at service loss' -l all -d 'Also flows that were seen at one point only.'
complete -c confluo-stream -n '__confluo_at service loss' -l from -r -F -d 'Read INPUT (repeatable); all operands form EXPR.'
complete -c confluo-stream -n '__confluo_at service loss' -l lateness -x -d 'Wait for records that are up to TIME late (1s).'
complete -c confluo-stream -n '__confluo_at service loss' -l to -r -F -d 'Send results to kafka://HOST:PORT/NAME, clickhouse://..., unix:PATH or FILE.messages.'
complete -c confluo-stream -n '__confluo_at service loss' -l ddl -d 'Only print the statement that makes the ClickHouse table of --to.'
complete -c confluo-stream -n '__confluo_at service loss' -s X -x -d 'Setting of librdkafka (repeatable); VALUE may be @FILE or env:NAME, and secrets must be.'
complete -c confluo-stream -n '__confluo_at service loss' -s i -l input-format -x -a 'tsv csv ndjson json stream arrow parquet pcap pcapng flock tshark multilog' -d 'Input format, if not detected: tsv, csv, ndjson, json, stream, arrow, parquet, pcap, pcapng, flock, tshark or multilog.'
complete -c confluo-stream -n '__confluo_at service loss' -l at -r -F -d 'Read the logs of a snapshot, as of its instant.'
complete -c confluo-stream -n '__confluo_at service loss' -l partial -d 'Skip hosts that cannot be reached, with a note.'
complete -c confluo-stream -n '__confluo_at service loss' -l no-archive -d 'Do not read the archives of a log.'
complete -c confluo-stream -n '__confluo_at service loss' -l since -x -d 'Only records at or after TIME: 2026-11-20T10:00, @1700000000.25, 15m (ago), now.'
complete -c confluo-stream -n '__confluo_at service loss' -l until -x -d 'Only records before TIME; a bare date includes that day.'
complete -c confluo-stream -n '__confluo_at service loss' -s f -l fields -x -a '(__confluo_list ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-stream -n '__confluo_at service loss' -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet multilog' -d 'Write table, tsv, csv, ndjson, json, stream, arrow, parquet or multilog.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-stream -n '__confluo_at service loss' -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-stream -n '__confluo_at service loss' -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-stream -n '__confluo_at service loss' -s w -l output -r -F -d 'Write the MultiLog LOG; or a file, by suffix or -o FORMAT.'
complete -c confluo-stream -n '__confluo_at service loss' -l force -d 'Overwrite the output file.'
complete -c confluo-stream -n '__confluo_at service loss' -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-stream -n '__confluo_at service loss' -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-stream -n '__confluo_at service loss' -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-stream -n '__confluo_at service loss' -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-stream -n '__confluo_at service loss' -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-stream -n '__confluo_at service loss' -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-stream -n '__confluo_at service loss' -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-stream -n '__confluo_at service loss' -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-stream -n '__confluo_at service loss' -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-stream -n '__confluo_at service loss' -l append -d 'Append to LOG if it exists.'
complete -c confluo-stream -n '__confluo_at service loss' -l add-columns -d 'With --append, add to LOG the fields that it lacks.'
complete -c confluo-stream -n '__confluo_at service loss' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-stream -n '__confluo_at service loss' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-stream -n '__confluo_at service loss' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-stream -n '__confluo_at service loss' -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-stream -n '__confluo_at service loss' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-stream -n '__confluo_at service loss' -l help -d 'Print the help.'
complete -c confluo-stream -n '__confluo_at service loss' -l version -d 'Print the version.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -l window -x -d 'Report each TIME apart; 0: all at once (10s).'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -l from -r -F -d 'Read INPUT (repeatable); all operands form EXPR.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -l lateness -x -d 'Wait for records that are up to TIME late (1s).'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -l to -r -F -d 'Send results to kafka://HOST:PORT/NAME, clickhouse://..., unix:PATH or FILE.messages.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -l ddl -d 'Only print the statement that makes the ClickHouse table of --to.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -s X -x -d 'Setting of librdkafka (repeatable); VALUE may be @FILE or env:NAME, and secrets must be.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -l follow -d 'Go on with what is added to the input, until a signal.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -l name -x -d 'Name of the run, for status and set (that of its input).'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -l metrics -x -d 'Serve GET /metrics for Prometheus at this address (127.0.0.1).'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -s i -l input-format -x -a 'tsv csv ndjson json stream arrow parquet pcap pcapng flock tshark multilog' -d 'Input format, if not detected: tsv, csv, ndjson, json, stream, arrow, parquet, pcap, pcapng, flock, tshark or multilog.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -l at -r -F -d 'Read the logs of a snapshot, as of its instant.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -l partial -d 'Skip hosts that cannot be reached, with a note.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -l no-archive -d 'Do not read the archives of a log.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -l since -x -d 'Only records at or after TIME: 2026-11-20T10:00, @1700000000.25, 15m (ago), now.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -l until -x -d 'Only records before TIME; a bare date includes that day.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -s f -l fields -x -a '(__confluo_list ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet multilog' -d 'Write table, tsv, csv, ndjson, json, stream, arrow, parquet or multilog.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -s w -l output -r -F -d 'Write the MultiLog LOG; or a file, by suffix or -o FORMAT.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -l force -d 'Overwrite the output file.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -l append -d 'Append to LOG if it exists.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -l add-columns -d 'With --append, add to LOG the fields that it lacks.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -l help -d 'Print the help.'
complete -c confluo-stream -n '__confluo_at service tcp-rate' -l version -d 'Print the version.'
complete -c confluo-stream -n '__confluo_at service top' -l by -x -a '(__confluo_list ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number)' -d 'Keys: fields, prefixes, flow, host (src_ip).'
complete -c confluo-stream -n '__confluo_at service top' -l top -x -d 'Report the N largest of each window (10).'
complete -c confluo-stream -n '__confluo_at service top' -l window -x -d 'Report each TIME apart; 0: all at once (10s).'
complete -c confluo-stream -n '__confluo_at service top' -l rank -x -a 'bytes packets' -d 'Order by bytes or packets (bytes).'
complete -c confluo-stream -n '__confluo_at service top' -l from -r -F -d 'Read INPUT (repeatable); all operands form EXPR.'
complete -c confluo-stream -n '__confluo_at service top' -l lateness -x -d 'Wait for records that are up to TIME late (1s).'
complete -c confluo-stream -n '__confluo_at service top' -l to -r -F -d 'Send results to kafka://HOST:PORT/NAME, clickhouse://..., unix:PATH or FILE.messages.'
complete -c confluo-stream -n '__confluo_at service top' -l ddl -d 'Only print the statement that makes the ClickHouse table of --to.'
complete -c confluo-stream -n '__confluo_at service top' -s X -x -d 'Setting of librdkafka (repeatable); VALUE may be @FILE or env:NAME, and secrets must be.'
complete -c confluo-stream -n '__confluo_at service top' -l follow -d 'Go on with what is added to the input, until a signal.'
complete -c confluo-stream -n '__confluo_at service top' -l name -x -d 'Name of the run, for status and set (that of its input).'
complete -c confluo-stream -n '__confluo_at service top' -l metrics -x -d 'Serve GET /metrics for Prometheus at this address (127.0.0.1).'
complete -c confluo-stream -n '__confluo_at service top' -s i -l input-format -x -a 'tsv csv ndjson json stream arrow parquet pcap pcapng flock tshark multilog' -d 'Input format, if not detected: tsv, csv, ndjson, json, stream, arrow, parquet, pcap, pcapng, flock, tshark or multilog.'
complete -c confluo-stream -n '__confluo_at service top' -l at -r -F -d 'Read the logs of a snapshot, as of its instant.'
complete -c confluo-stream -n '__confluo_at service top' -l partial -d 'Skip hosts that cannot be reached, with a note.'
complete -c confluo-stream -n '__confluo_at service top' -l no-archive -d 'Do not read the archives of a log.'
complete -c confluo-stream -n '__confluo_at service top' -l since -x -d 'Only records at or after TIME: 2026-11-20T10:00, @1700000000.25, 15m (ago), now.'
complete -c confluo-stream -n '__confluo_at service top' -l until -x -d 'Only records before TIME; a bare date includes that day.'
complete -c confluo-stream -n '__confluo_at service top' -s f -l fields -x -a '(__confluo_list ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-stream -n '__confluo_at service top' -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet multilog' -d 'Write table, tsv, csv, ndjson, json, stream, arrow, parquet or multilog.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-stream -n '__confluo_at service top' -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-stream -n '__confluo_at service top' -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-stream -n '__confluo_at service top' -s w -l output -r -F -d 'Write the MultiLog LOG; or a file, by suffix or -o FORMAT.'
complete -c confluo-stream -n '__confluo_at service top' -l force -d 'Overwrite the output file.'
complete -c confluo-stream -n '__confluo_at service top' -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-stream -n '__confluo_at service top' -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-stream -n '__confluo_at service top' -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-stream -n '__confluo_at service top' -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-stream -n '__confluo_at service top' -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-stream -n '__confluo_at service top' -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-stream -n '__confluo_at service top' -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-stream -n '__confluo_at service top' -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-stream -n '__confluo_at service top' -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-stream -n '__confluo_at service top' -l append -d 'Append to LOG if it exists.'
complete -c confluo-stream -n '__confluo_at service top' -l add-columns -d 'With --append, add to LOG the fields that it lacks.'
complete -c confluo-stream -n '__confluo_at service top' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-stream -n '__confluo_at service top' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-stream -n '__confluo_at service top' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-stream -n '__confluo_at service top' -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-stream -n '__confluo_at service top' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-stream -n '__confluo_at service top' -l help -d 'Print the help.'
complete -c confluo-stream -n '__confluo_at service top' -l version -d 'Print the version.'
complete -c confluo-stream -n '__confluo_at service histogram' -l field -x -a '(__confluo_list ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number)' -d 'The number to count; or the sum or difference of two (len).'
complete -c confluo-stream -n '__confluo_at service histogram' -l bins -x -d 'LOW..HIGH/STEP, or log2: powers of two (log2).'
complete -c confluo-stream -n '__confluo_at service histogram' -l window -x -d 'Report each TIME apart (10s).'
complete -c confluo-stream -n '__confluo_at service histogram' -l from -r -F -d 'Read INPUT (repeatable); all operands form EXPR.'
complete -c confluo-stream -n '__confluo_at service histogram' -l lateness -x -d 'Wait for records that are up to TIME late (1s).'
complete -c confluo-stream -n '__confluo_at service histogram' -l to -r -F -d 'Send results to kafka://HOST:PORT/NAME, clickhouse://..., unix:PATH or FILE.messages.'
complete -c confluo-stream -n '__confluo_at service histogram' -l ddl -d 'Only print the statement that makes the ClickHouse table of --to.'
complete -c confluo-stream -n '__confluo_at service histogram' -s X -x -d 'Setting of librdkafka (repeatable); VALUE may be @FILE or env:NAME, and secrets must be.'
complete -c confluo-stream -n '__confluo_at service histogram' -l follow -d 'Go on with what is added to the input, until a signal.'
complete -c confluo-stream -n '__confluo_at service histogram' -l name -x -d 'Name of the run, for status and set (that of its input).'
complete -c confluo-stream -n '__confluo_at service histogram' -l metrics -x -d 'Serve GET /metrics for Prometheus at this address (127.0.0.1).'
complete -c confluo-stream -n '__confluo_at service histogram' -s i -l input-format -x -a 'tsv csv ndjson json stream arrow parquet pcap pcapng flock tshark multilog' -d 'Input format, if not detected: tsv, csv, ndjson, json, stream, arrow, parquet, pcap, pcapng, flock, tshark or multilog.'
complete -c confluo-stream -n '__confluo_at service histogram' -l at -r -F -d 'Read the logs of a snapshot, as of its instant.'
complete -c confluo-stream -n '__confluo_at service histogram' -l partial -d 'Skip hosts that cannot be reached, with a note.'
complete -c confluo-stream -n '__confluo_at service histogram' -l no-archive -d 'Do not read the archives of a log.'
complete -c confluo-stream -n '__confluo_at service histogram' -l since -x -d 'Only records at or after TIME: 2026-11-20T10:00, @1700000000.25, 15m (ago), now.'
complete -c confluo-stream -n '__confluo_at service histogram' -l until -x -d 'Only records before TIME; a bare date includes that day.'
complete -c confluo-stream -n '__confluo_at service histogram' -s f -l fields -x -a '(__confluo_list ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-stream -n '__confluo_at service histogram' -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet multilog' -d 'Write table, tsv, csv, ndjson, json, stream, arrow, parquet or multilog.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-stream -n '__confluo_at service histogram' -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-stream -n '__confluo_at service histogram' -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-stream -n '__confluo_at service histogram' -s w -l output -r -F -d 'Write the MultiLog LOG; or a file, by suffix or -o FORMAT.'
complete -c confluo-stream -n '__confluo_at service histogram' -l force -d 'Overwrite the output file.'
complete -c confluo-stream -n '__confluo_at service histogram' -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-stream -n '__confluo_at service histogram' -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-stream -n '__confluo_at service histogram' -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-stream -n '__confluo_at service histogram' -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-stream -n '__confluo_at service histogram' -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-stream -n '__confluo_at service histogram' -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-stream -n '__confluo_at service histogram' -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-stream -n '__confluo_at service histogram' -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-stream -n '__confluo_at service histogram' -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-stream -n '__confluo_at service histogram' -l append -d 'Append to LOG if it exists.'
complete -c confluo-stream -n '__confluo_at service histogram' -l add-columns -d 'With --append, add to LOG the fields that it lacks.'
complete -c confluo-stream -n '__confluo_at service histogram' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-stream -n '__confluo_at service histogram' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-stream -n '__confluo_at service histogram' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-stream -n '__confluo_at service histogram' -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-stream -n '__confluo_at service histogram' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-stream -n '__confluo_at service histogram' -l help -d 'Print the help.'
complete -c confluo-stream -n '__confluo_at service histogram' -l version -d 'Print the version.'

# command: confluo-query
# Completion of confluo-query for fish.  Made by completions/update from the options of the command and head.fish.

# Whether the verbs of the command line are these.
function __confluo_at
    set -l words (commandline -opc)
    set -e words[1]
    for verb in $argv
        test "$words[1]" = "$verb"
        or return 1
        set -e words[1]
    end
end

# Words with commas between them: each one after those that are already there.
function __confluo_list
    set -l before (commandline -ct | string replace -r '^--[a-z-]+=' '' | string replace -r '[^,]*$' '')
    printf '%s\n' $before$argv
end

# What the command confluo-NAME would offer for the rest of a line `confluo NAME ...`.
function __confluo_rest
    set -l words (commandline -opc)
    set -l name $words[2]
    set -e words[1..2]
    complete -C "confluo-$name "(string join ' ' -- (string escape -- $words) (commandline -ct))
end

complete -c confluo-query -s r -l read -r -F -d 'Read INPUT (repeatable); all operands form EXPR.'
complete -c confluo-query -s e -l expr -x -d 'Filter expression; all operands are inputs.'
complete -c confluo-query -s F -l expr-file -r -F -d 'As -e, with the expression in FILE.'
complete -c confluo-query -l analyze -x -a 'tcp maxseq' -d 'Add fields derived from earlier packets: tcp, or a state.'
complete -c confluo-query -l analyze-flows -x -d 'Track at most N flows at a time (262144).'
complete -c confluo-query -l sort-input -d 'Sort the records of files and pipes by time before they are used.'
complete -c confluo-query -l state -r -F -a 'maxseq' -d 'Read the states of a definition (a name or a file).'
complete -c confluo-query -l geo -r -F -d 'Have src_country, dst_asn ... of this database, such as GeoLite2-City.mmdb (repeatable).'
complete -c confluo-query -l dedup -x -d 'Leave out copies of a packet that came at most TIME before: 10ms.'
complete -c confluo-query -l unnest -x -a '(__confluo_list ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number)' -d 'Make one row of each element of these lists: \'switch_path,queue_depth\'.'
complete -c confluo-query -s c -l limit -x -d 'Stop after N records.'
complete -c confluo-query -l count -d 'Print only the record count.'
complete -c confluo-query -l sample -x -d 'Select every Nth flow, always the same ones.'
complete -c confluo-query -l agg -x -a '(__confluo_list count sum avg min max stddev first last distinct distinct~ rate mean median)' -d 'Compute aggregates: \'count, sum(len), p99(len), distinct(src_ip)\'.'
complete -c confluo-query -l by -x -a '(__confluo_list ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number)' -d 'Group by keys: \'dst_ip/24, conn, host, 1s, 1mo, len/100\'.'
complete -c confluo-query -l fill -d 'Also print the steps without records, with 0 or no value.'
complete -c confluo-query -l having -x -d 'Keep only groups for which EXPR holds: \'count > 100\'.'
complete -c confluo-query -l sort -x -a '(__confluo_list ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number)' -d 'Sort groups by columns; - for the largest first: \'-count,src_ip\'.'
complete -c confluo-query -l top -x -d 'Keep N groups: the first of --sort, or the largest.'
complete -c confluo-query -l memory-limit -x -d 'Use at most this much memory for groups, then temporary files (half of what is free).'
complete -c confluo-query -l engine -x -a 'local dask:// spark://' -d 'Compute on local (all cores), local:N, dask://HOST:PORT or spark://HOST:PORT.'
complete -c confluo-query -l explain -d 'Print the query plan instead of the rows.'
complete -c confluo-query -l source -r -F -d 'Read packets for -o pcap from this capture (repeatable).'
complete -c confluo-query -l synthesize -d 'With -o pcap, build the headers of packets from their fields.'
complete -c confluo-query -l schema -r -F -a 'alert blackhole cause conn drop envelope explanation header64 histogram loss message netflow packet passage path probe queue recording retx score stage tcp_rate topic vote' -d 'Read with these field types: a YAML file or a built-in name.'
complete -c confluo-query -s i -l input-format -x -a 'tsv csv ndjson json stream arrow parquet pcap pcapng flock tshark multilog' -d 'Input format, if not detected: tsv, csv, ndjson, json, stream, arrow, parquet, pcap, pcapng, flock, tshark or multilog.'
complete -c confluo-query -l at -r -F -d 'Read the logs of a snapshot, as of its instant.'
complete -c confluo-query -l partial -d 'Skip hosts that cannot be reached, with a note.'
complete -c confluo-query -l no-archive -d 'Do not read the archives of a log.'
complete -c confluo-query -l follow -d 'Go on as records arrive, until a signal.'
complete -c confluo-query -l group -x -d 'Share a topic with the other readers of this group.'
complete -c confluo-query -l last -x -d 'Print the newest N records, then with --follow go on.'
complete -c confluo-query -l cursor -r -F -d 'Go on where FILE says that the last run stopped.'
complete -c confluo-query -l lag -x -d '--follow --agg: wait TIME for late records of a window (200ms).'
complete -c confluo-query -l flows -d 'Turn packets into flow records; EXPR and all other options are about these.'
complete -c confluo-query -l packets -x -d 'With --flows: use only packets for which EXPR holds.'
complete -c confluo-query -l idle-timeout -x -d 'End a flow TIME after its last packet.'
complete -c confluo-query -l active-timeout -x -d 'Write a record of a flow that is TIME old.'
complete -c confluo-query -l since -x -d 'Only records at or after TIME: 2026-11-20T10:00, @1700000000.25, 15m (ago), now.'
complete -c confluo-query -l until -x -d 'Only records before TIME; a bare date includes that day.'
complete -c confluo-query -s f -l fields -x -a '(__confluo_list ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-query -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet pcap pcapng multilog svg html spark' -d 'Write table, tsv, csv, ndjson, json, stream, arrow, parquet, pcap, pcapng, multilog, svg, html or spark.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-query -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-query -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-query -s w -l output -r -F -d 'Write the MultiLog LOG; or a file, by suffix or -o FORMAT.'
complete -c confluo-query -l force -d 'Overwrite the output file.'
complete -c confluo-query -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-query -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-query -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-query -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-query -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-query -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-query -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-query -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-query -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-query -l append -d 'Append to LOG if it exists.'
complete -c confluo-query -l add-columns -d 'With --append, add to LOG the fields that it lacks.'
complete -c confluo-query -l anonymize -r -F -d 'Replace addresses by others, by the key in this file.'
complete -c confluo-query -l anonymize-keep -x -d 'Leave these: mac, oui, payload, text.'
complete -c confluo-query -l anonymize-ports -d 'With --anonymize, also replace ports.'
complete -c confluo-query -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-query -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-query -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-query -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-query -s h -d 'Print usage, the main options and examples.'
complete -c confluo-query -l help -d 'Print the help.'
complete -c confluo-query -l version -d 'Print the version.'

# command: confluo-top
# Completion of confluo-top for fish.  Made by completions/update from the options of the command and head.fish.

# Whether the verbs of the command line are these.
function __confluo_at
    set -l words (commandline -opc)
    set -e words[1]
    for verb in $argv
        test "$words[1]" = "$verb"
        or return 1
        set -e words[1]
    end
end

# Words with commas between them: each one after those that are already there.
function __confluo_list
    set -l before (commandline -ct | string replace -r '^--[a-z-]+=' '' | string replace -r '[^,]*$' '')
    printf '%s\n' $before$argv
end

# What the command confluo-NAME would offer for the rest of a line `confluo NAME ...`.
function __confluo_rest
    set -l words (commandline -opc)
    set -l name $words[2]
    set -e words[1..2]
    complete -C "confluo-$name "(string join ' ' -- (string escape -- $words) (commandline -ct))
end

complete -c confluo-top -s r -l read -r -F -d 'Read INPUT (repeatable); all operands form EXPR.'
complete -c confluo-top -s e -l expr -x -d 'Filter expression; all operands are inputs.'
complete -c confluo-top -s i -l interface -x -a '(__fish_print_interfaces)' -d 'Interface to capture from (repeatable), or any.'
complete -c confluo-top -l by -x -a '(__confluo_list ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number)' -d 'Group by these keys at the start: \'src_ip\', \'flow\'.'
complete -c confluo-top -l agg -x -a '(__confluo_list count sum avg min max stddev first last distinct distinct~ rate mean median)' -d 'Show these aggregates at the start: \'rate(len), rate\'.'
complete -c confluo-top -l sort -x -a '(__confluo_list ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number)' -d 'Show the groups with the largest values of this column.'
complete -c confluo-top -l window -x -d 'Aggregate the records of the last TIME (10s).'
complete -c confluo-top -l every -x -d 'Time between two updates (1s).'
complete -c confluo-top -s n -l updates -x -d 'Print N updates, without the live view.'
complete -c confluo-top -l once -d 'As -n 1.'
complete -c confluo-top -l top -x -d 'Print N groups per update, without the live view (10).'
complete -c confluo-top -l bpf -x -d 'Let the kernel drop packets that do not match a pcap-filter(7).'
complete -c confluo-top -l decap -x -a 'outer inner' -d 'Use the outer or inner IP and transport fields.'
complete -c confluo-top -l ring -x -d 'Size of the packet ring of each lane (32MiB).'
complete -c confluo-top -s p -l no-promiscuous -d 'Capture only packets to or from this machine.'
complete -c confluo-top -s Z -l user -x -a '(__fish_complete_users)' -d 'Switch to USER once all sockets are open.'
complete -c confluo-top -l input-format -x -a 'tsv csv ndjson json stream arrow parquet pcap pcapng flock tshark multilog' -d 'Input format, if not detected: tsv, csv, ndjson, json, stream, arrow, parquet, pcap, pcapng, flock, tshark or multilog.'
complete -c confluo-top -l partial -d 'Skip hosts that cannot be reached, with a note.'
complete -c confluo-top -l no-archive -d 'Do not read the archives of a log.'
complete -c confluo-top -s f -l fields -x -a '(__confluo_list ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-top -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet' -d 'Write table, tsv, csv, ndjson, json, stream, arrow or parquet.  Default: a live view on a terminal, otherwise tsv.'
complete -c confluo-top -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-top -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-top -s w -l output -r -F -d 'Write to FILE, atomically; - is stdout.'
complete -c confluo-top -l force -d 'Overwrite the output file.'
complete -c confluo-top -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-top -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-top -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-top -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-top -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-top -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-top -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-top -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-top -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-top -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-top -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-top -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-top -s h -d 'Print usage, the main options and examples.'
complete -c confluo-top -l help -d 'Print the help.'
complete -c confluo-top -l version -d 'Print the version.'

# command: confluo-sql
# Completion of confluo-sql for fish.  Made by completions/update from the options of the command and head.fish.

# Whether the verbs of the command line are these.
function __confluo_at
    set -l words (commandline -opc)
    set -e words[1]
    for verb in $argv
        test "$words[1]" = "$verb"
        or return 1
        set -e words[1]
    end
end

# Words with commas between them: each one after those that are already there.
function __confluo_list
    set -l before (commandline -ct | string replace -r '^--[a-z-]+=' '' | string replace -r '[^,]*$' '')
    printf '%s\n' $before$argv
end

# What the command confluo-NAME would offer for the rest of a line `confluo NAME ...`.
function __confluo_rest
    set -l words (commandline -opc)
    set -l name $words[2]
    set -e words[1..2]
    complete -C "confluo-$name "(string join ' ' -- (string escape -- $words) (commandline -ct))
end

complete -c confluo-sql -l at -r -F -d 'The tables are the logs of this snapshot, by the names of their hosts or folders.'
complete -c confluo-sql -l unsafe -d 'Let the statement read and write files, and be any statement of DuckDB.'
complete -c confluo-sql -l geo -r -F -d 'Have src_country, dst_asn ... of this database, such as GeoLite2-City.mmdb (repeatable).'
complete -c confluo-sql -l memory-limit -x -d 'Use at most this much memory, then a temporary folder (4/5 of RAM).'
complete -c confluo-sql -l threads -x -d 'Use N threads (one per core).'
complete -c confluo-sql -s f -l fields -x -a '(__confluo_list ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-sql -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet' -d 'Write table, tsv, csv, ndjson, json, stream, arrow or parquet.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-sql -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-sql -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-sql -s w -l output -r -F -d 'Write to FILE, atomically; - is stdout.'
complete -c confluo-sql -l force -d 'Overwrite the output file.'
complete -c confluo-sql -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-sql -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-sql -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-sql -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-sql -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-sql -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-sql -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-sql -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-sql -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-sql -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-sql -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-sql -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-sql -s h -d 'Print usage, the main options and examples.'
complete -c confluo-sql -l help -d 'Print the help.'
complete -c confluo-sql -l version -d 'Print the version.'
complete -c confluo-sql -f

# command: confluo-snapshot
# Completion of confluo-snapshot for fish.  Made by completions/update from the options of the command and head.fish.

# Whether the verbs of the command line are these.
function __confluo_at
    set -l words (commandline -opc)
    set -e words[1]
    for verb in $argv
        test "$words[1]" = "$verb"
        or return 1
        set -e words[1]
    end
end

# Words with commas between them: each one after those that are already there.
function __confluo_list
    set -l before (commandline -ct | string replace -r '^--[a-z-]+=' '' | string replace -r '[^,]*$' '')
    printf '%s\n' $before$argv
end

# What the command confluo-NAME would offer for the rest of a line `confluo NAME ...`.
function __confluo_rest
    set -l words (commandline -opc)
    set -l name $words[2]
    set -e words[1..2]
    complete -C "confluo-$name "(string join ' ' -- (string escape -- $words) (commandline -ct))
end

complete -c confluo-snapshot -s w -l output -r -F -d 'Write to FILE, atomically; - is stdout.'
complete -c confluo-snapshot -l force -d 'Overwrite the output file.'
complete -c confluo-snapshot -l partial -d 'Skip hosts that cannot be reached, with a note.'
complete -c confluo-snapshot -l deadline -x -d 'Abort a freeze after TIME (500ms).'
complete -c confluo-snapshot -l wait -x -d 'Wait up to TIME for the answer of a host (30s).'
complete -c confluo-snapshot -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-snapshot -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-snapshot -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-snapshot -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-snapshot -s h -d 'Print usage, the main options and examples.'
complete -c confluo-snapshot -l help -d 'Print the help.'
complete -c confluo-snapshot -l version -d 'Print the version.'

# command: confluo-vote
# Completion of confluo-vote for fish.  Made by completions/update from the options of the command and head.fish.

# Whether the verbs of the command line are these.
function __confluo_at
    set -l words (commandline -opc)
    set -e words[1]
    for verb in $argv
        test "$words[1]" = "$verb"
        or return 1
        set -e words[1]
    end
end

# Words with commas between them: each one after those that are already there.
function __confluo_list
    set -l before (commandline -ct | string replace -r '^--[a-z-]+=' '' | string replace -r '[^,]*$' '')
    printf '%s\n' $before$argv
end

# What the command confluo-NAME would offer for the rest of a line `confluo NAME ...`.
function __confluo_rest
    set -l words (commandline -opc)
    set -l name $words[2]
    set -e words[1..2]
    complete -C "confluo-$name "(string join ' ' -- (string escape -- $words) (commandline -ct))
end

complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -f -a simulate -d 'simulate flows of a network with known faults'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -f -a bound -d 'print what the theorems of 007 promise for a network'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l model -x -a 'vote mle cover milp-binary milp-integer help' -d 'How to find them: vote, mle, ...; help lists the models (vote).'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l by -x -a 'link switch' -d 'What to blame: link or switch (link).'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l epoch -x -d 'Print a ranking per TIME (one in all; --follow: 30s).'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l follow -d 'Continue as records arrive; print each epoch at its end.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l lateness -x -d 'With --follow, wait TIME for late records (1s).'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l topology -r -F -d 'Topology file: names, addresses, ECMP paths.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l alias -r -F -d 'Lines \'ADDRESS NAME\': assign addresses to switches.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l adjust -x -a 'flows ecmp none' -d 'vote: remove the votes of a blamed link by flows, ecmp or none (flows).'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l total -x -a 'running initial' -d 'vote: total that --threshold refers to, running or initial (running).'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l threshold -x -d 'vote: minimum share of the votes to blame a link (1%).'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l floor -x -d 'vote: a blamed link has more than VOTES (0.67).'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l noise -x -d 'A flow is noise if its best link has at most VOTES (its own).'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l literal -d 'A flow blames the link with most votes, also one that is not blamed.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l healthy -x -a 'path ecmp none' -d 'Locate flows without loss by path, ecmp or none (path).'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l p-bad -x -d 'mle: drop rate of a bad link (fitted per link).'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l p-good -x -d 'mle: drop rate of good paths (fitted).'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l prior -x -d 'mle: log odds that a link is bad (fitted).'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l ratio -x -d 'mle, fitted: a bad link drops N times as much as good ones (2).'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l time-limit -x -d 'milp: time limit of the solver (60s).'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l flows -d 'Print the flows with loss and the link blamed for each.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l score -d 'Print precision and recall, from the truth in the records.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l top -x -d 'Print N links per epoch, and all blamed ones (10).'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l engine -x -a 'local dask:// spark://' -d 'Compute on local (all cores), local:N, dask://HOST:PORT or spark://HOST:PORT.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -s i -l input-format -x -a 'tsv csv ndjson json stream arrow parquet pcap pcapng flock tshark multilog' -d 'Input format, if not detected: tsv, csv, ndjson, json, stream, arrow, parquet, pcap, pcapng, flock, tshark or multilog.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l at -r -F -d 'Read the logs of a snapshot, as of its instant.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l partial -d 'Skip hosts that cannot be reached, with a note.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l no-archive -d 'Do not read the archives of a log.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -s f -l fields -x -a '(__confluo_list ts epoch rank verdict link_a link_b score votes flows dead carried lost sent rate confidence truth a b help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet' -d 'Write table, tsv, csv, ndjson, json, stream, arrow or parquet.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -s w -l output -r -F -d 'Write to FILE, atomically; - is stdout.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l force -d 'Overwrite the output file.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l help -d 'Print the help.'
complete -c confluo-vote -n 'not __confluo_at simulate; and not __confluo_at bound' -l version -d 'Print the version.'
complete -c confluo-vote -n '__confluo_at simulate' -l pods -x -d 'Pods (2).'
complete -c confluo-vote -n '__confluo_at simulate' -l tors -x -d 'ToRs of a pod (20).'
complete -c confluo-vote -n '__confluo_at simulate' -l t1s -x -d 'T1 switches of a pod (8).'
complete -c confluo-vote -n '__confluo_at simulate' -l t2s -x -d 'T2 switches (10).'
complete -c confluo-vote -n '__confluo_at simulate' -l hosts -x -d 'Hosts of a ToR (40).'
complete -c confluo-vote -n '__confluo_at simulate' -l topology -r -F -d 'Topology file of a Clos, instead of its counts.'
complete -c confluo-vote -n '__confluo_at simulate' -l write-topology -r -F -d 'Write the topology file of the network.'
complete -c confluo-vote -n '__confluo_at simulate' -l failures -x -d 'Number of failed links (1; 0 with --fail or --devices).'
complete -c confluo-vote -n '__confluo_at simulate' -l where -x -a '(__confluo_list fabric all tor-t1 t1-t2)' -d 'Kinds of links that fail: fabric, all, or tor-t1,t1-t2,... (fabric).'
complete -c confluo-vote -n '__confluo_at simulate' -l devices -x -d 'Number of switches that fail as a whole (0).'
complete -c confluo-vote -n '__confluo_at simulate' -l fail -x -d 'Make this link fail, or the switch A:A (repeatable).'
complete -c confluo-vote -n '__confluo_at simulate' -l rate -x -d 'Drop rate of failures (0.01%..1%); repeat it for the second, ...'
complete -c confluo-vote -n '__confluo_at simulate' -l noise -x -d 'Highest drop rate of good links (1e-6).'
complete -c confluo-vote -n '__confluo_at simulate' -l connections -x -d 'Flows per host and epoch: N or A..B (60).'
complete -c confluo-vote -n '__confluo_at simulate' -l packets -x -d 'Packets per flow: N or A..B (1..100).'
complete -c confluo-vote -n '__confluo_at simulate' -l sizes -x -a 'uniform pareto' -d 'uniform, or pareto: most flows small, few large (uniform).'
complete -c confluo-vote -n '__confluo_at simulate' -l traffic -x -a 'uniform skewed hot' -d 'uniform, skewed (80% to 25% of the ToRs) or hot (50% to one).'
complete -c confluo-vote -n '__confluo_at simulate' -l hot-tors -x -d 'Number of ToRs that receive more than their share.'
complete -c confluo-vote -n '__confluo_at simulate' -l skew -x -d 'Share of the flows to the hot ToRs: 80%, 0.5.'
complete -c confluo-vote -n '__confluo_at simulate' -l epochs -x -d 'Number of epochs (1).'
complete -c confluo-vote -n '__confluo_at simulate' -l epoch -x -d 'Length of an epoch (30s).'
complete -c confluo-vote -n '__confluo_at simulate' -l start -x -d 'Start of the first epoch.'
complete -c confluo-vote -n '__confluo_at simulate' -l healthy -x -a 'none bare path' -d 'Write flows without loss: none, bare or path (none).'
complete -c confluo-vote -n '__confluo_at simulate' -l cap -x -d 'Trace at most N flows per host and epoch; 0: all (0).'
complete -c confluo-vote -n '__confluo_at simulate' -l silence -x -d 'Share of switches that do not answer traceroutes (0).'
complete -c confluo-vote -n '__confluo_at simulate' -l deaths -d 'Simulate handshakes, time-outs, lost acknowledgements and traces with losses.'
complete -c confluo-vote -n '__confluo_at simulate' -l holes -x -a 'pairs flows none' -d 'Failures drop all packets of some pairs or flows, not some of all (none).'
complete -c confluo-vote -n '__confluo_at simulate' -l quirks -x -a '(__confluo_list last-hop two-draws culprit all)' -d 'Behave as the authors\' program: last-hop, two-draws, culprit, all.'
complete -c confluo-vote -n '__confluo_at simulate' -l seed -x -d 'Seed; the same seed gives the same records everywhere (1).'
complete -c confluo-vote -n '__confluo_at simulate' -s f -l fields -x -a '(__confluo_list ts epoch rank verdict link_a link_b score votes flows dead carried lost sent rate confidence truth a b help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-vote -n '__confluo_at simulate' -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet multilog' -d 'Write table, tsv, csv, ndjson, json, stream, arrow, parquet or multilog.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-vote -n '__confluo_at simulate' -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-vote -n '__confluo_at simulate' -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-vote -n '__confluo_at simulate' -s w -l output -r -F -d 'Write the MultiLog LOG; or a file, by suffix or -o FORMAT.'
complete -c confluo-vote -n '__confluo_at simulate' -l force -d 'Overwrite the output file.'
complete -c confluo-vote -n '__confluo_at simulate' -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-vote -n '__confluo_at simulate' -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-vote -n '__confluo_at simulate' -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-vote -n '__confluo_at simulate' -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-vote -n '__confluo_at simulate' -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-vote -n '__confluo_at simulate' -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-vote -n '__confluo_at simulate' -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-vote -n '__confluo_at simulate' -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-vote -n '__confluo_at simulate' -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-vote -n '__confluo_at simulate' -l append -d 'Append to LOG if it exists.'
complete -c confluo-vote -n '__confluo_at simulate' -l add-columns -d 'With --append, add to LOG the fields that it lacks.'
complete -c confluo-vote -n '__confluo_at simulate' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-vote -n '__confluo_at simulate' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-vote -n '__confluo_at simulate' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-vote -n '__confluo_at simulate' -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-vote -n '__confluo_at simulate' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-vote -n '__confluo_at simulate' -l help -d 'Print the help.'
complete -c confluo-vote -n '__confluo_at simulate' -l version -d 'Print the version.'
complete -c confluo-vote -n '__confluo_at simulate' -f
complete -c confluo-vote -n '__confluo_at bound' -l topology -r -F -d 'The network: YAML, or a list of its links.'
complete -c confluo-vote -n '__confluo_at bound' -l pods -x -d 'Without --topology: pods (2).'
complete -c confluo-vote -n '__confluo_at bound' -l tors -x -d 'ToRs of a pod (20).'
complete -c confluo-vote -n '__confluo_at bound' -l t1s -x -d 'T1 switches of a pod (8).'
complete -c confluo-vote -n '__confluo_at bound' -l t2s -x -d 'T2 switches (10).'
complete -c confluo-vote -n '__confluo_at bound' -l hosts -x -d 'Hosts of a ToR (40).'
complete -c confluo-vote -n '__confluo_at bound' -l t-max -x -d 'ICMP messages a second that a switch may send (100).'
complete -c confluo-vote -n '__confluo_at bound' -l failures -x -d 'Numbers of bad links (1,5).'
complete -c confluo-vote -n '__confluo_at bound' -l bad -x -d 'Bad links drop at least this (0.05%).'
complete -c confluo-vote -n '__confluo_at bound' -l good -x -d 'Good links drop at most this (1e-8).'
complete -c confluo-vote -n '__confluo_at bound' -l packets -x -d 'Packets of a connection (10..90).'
complete -c confluo-vote -n '__confluo_at bound' -l connections -x -d 'Of a host in an epoch (60).'
complete -c confluo-vote -n '__confluo_at bound' -s f -l fields -x -a '(__confluo_list ts epoch rank verdict link_a link_b score votes flows dead carried lost sent rate confidence truth a b help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-vote -n '__confluo_at bound' -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet' -d 'Write table, tsv, csv, ndjson, json, stream, arrow or parquet.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-vote -n '__confluo_at bound' -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-vote -n '__confluo_at bound' -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-vote -n '__confluo_at bound' -s w -l output -r -F -d 'Write to FILE, atomically; - is stdout.'
complete -c confluo-vote -n '__confluo_at bound' -l force -d 'Overwrite the output file.'
complete -c confluo-vote -n '__confluo_at bound' -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-vote -n '__confluo_at bound' -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-vote -n '__confluo_at bound' -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-vote -n '__confluo_at bound' -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-vote -n '__confluo_at bound' -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-vote -n '__confluo_at bound' -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-vote -n '__confluo_at bound' -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-vote -n '__confluo_at bound' -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-vote -n '__confluo_at bound' -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-vote -n '__confluo_at bound' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-vote -n '__confluo_at bound' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-vote -n '__confluo_at bound' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-vote -n '__confluo_at bound' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-vote -n '__confluo_at bound' -l help -d 'Print the help.'
complete -c confluo-vote -n '__confluo_at bound' -l version -d 'Print the version.'
complete -c confluo-vote -n '__confluo_at bound' -f

# command: confluo-pingmesh
# Completion of confluo-pingmesh for fish.  Made by completions/update from the options of the command and head.fish.

# Whether the verbs of the command line are these.
function __confluo_at
    set -l words (commandline -opc)
    set -e words[1]
    for verb in $argv
        test "$words[1]" = "$verb"
        or return 1
        set -e words[1]
    end
end

# Words with commas between them: each one after those that are already there.
function __confluo_list
    set -l before (commandline -ct | string replace -r '^--[a-z-]+=' '' | string replace -r '[^,]*$' '')
    printf '%s\n' $before$argv
end

# What the command confluo-NAME would offer for the rest of a line `confluo NAME ...`.
function __confluo_rest
    set -l words (commandline -opc)
    set -l name $words[2]
    set -e words[1..2]
    complete -C "confluo-$name "(string join ' ' -- (string escape -- $words) (commandline -ct))
end

complete -c confluo-pingmesh -n 'not __confluo_at plan; and not __confluo_at serve; and not __confluo_at agent; and not __confluo_at probe; and not __confluo_at respond; and not __confluo_at blackholes; and not __confluo_at drops; and not __confluo_at sla; and not __confluo_at verdict; and not __confluo_at simulate; and not __confluo_at heatmap' -f -a plan -d 'make pinglists from a topology'
complete -c confluo-pingmesh -n 'not __confluo_at plan; and not __confluo_at serve; and not __confluo_at agent; and not __confluo_at probe; and not __confluo_at respond; and not __confluo_at blackholes; and not __confluo_at drops; and not __confluo_at sla; and not __confluo_at verdict; and not __confluo_at simulate; and not __confluo_at heatmap' -f -a serve -d 'serve pinglists to agents'
complete -c confluo-pingmesh -n 'not __confluo_at plan; and not __confluo_at serve; and not __confluo_at agent; and not __confluo_at probe; and not __confluo_at respond; and not __confluo_at blackholes; and not __confluo_at drops; and not __confluo_at sla; and not __confluo_at verdict; and not __confluo_at simulate; and not __confluo_at heatmap' -f -a agent -d 'probe the servers on a pinglist, and answer probes'
complete -c confluo-pingmesh -n 'not __confluo_at plan; and not __confluo_at serve; and not __confluo_at agent; and not __confluo_at probe; and not __confluo_at respond; and not __confluo_at blackholes; and not __confluo_at drops; and not __confluo_at sla; and not __confluo_at verdict; and not __confluo_at simulate; and not __confluo_at heatmap' -f -a probe -d 'probe some targets, like ping'
complete -c confluo-pingmesh -n 'not __confluo_at plan; and not __confluo_at serve; and not __confluo_at agent; and not __confluo_at probe; and not __confluo_at respond; and not __confluo_at blackholes; and not __confluo_at drops; and not __confluo_at sla; and not __confluo_at verdict; and not __confluo_at simulate; and not __confluo_at heatmap' -f -a respond -d 'only answer probes'
complete -c confluo-pingmesh -n 'not __confluo_at plan; and not __confluo_at serve; and not __confluo_at agent; and not __confluo_at probe; and not __confluo_at respond; and not __confluo_at blackholes; and not __confluo_at drops; and not __confluo_at sla; and not __confluo_at verdict; and not __confluo_at simulate; and not __confluo_at heatmap' -f -a blackholes -d 'find switches that drop all packets of some pairs of servers'
complete -c confluo-pingmesh -n 'not __confluo_at plan; and not __confluo_at serve; and not __confluo_at agent; and not __confluo_at probe; and not __confluo_at respond; and not __confluo_at blackholes; and not __confluo_at drops; and not __confluo_at sla; and not __confluo_at verdict; and not __confluo_at simulate; and not __confluo_at heatmap' -f -a drops -d 'find the layer that drops packets at random, and flows to trace'
complete -c confluo-pingmesh -n 'not __confluo_at plan; and not __confluo_at serve; and not __confluo_at agent; and not __confluo_at probe; and not __confluo_at respond; and not __confluo_at blackholes; and not __confluo_at drops; and not __confluo_at sla; and not __confluo_at verdict; and not __confluo_at simulate; and not __confluo_at heatmap' -f -a sla -d 'print drop rate and latency with intervals, and alerts'
complete -c confluo-pingmesh -n 'not __confluo_at plan; and not __confluo_at serve; and not __confluo_at agent; and not __confluo_at probe; and not __confluo_at respond; and not __confluo_at blackholes; and not __confluo_at drops; and not __confluo_at sla; and not __confluo_at verdict; and not __confluo_at simulate; and not __confluo_at heatmap' -f -a verdict -d 'decide whether the network is the cause of a problem'
complete -c confluo-pingmesh -n 'not __confluo_at plan; and not __confluo_at serve; and not __confluo_at agent; and not __confluo_at probe; and not __confluo_at respond; and not __confluo_at blackholes; and not __confluo_at drops; and not __confluo_at sla; and not __confluo_at verdict; and not __confluo_at simulate; and not __confluo_at heatmap' -f -a simulate -d 'simulate probes of a fleet with known faults'
complete -c confluo-pingmesh -n 'not __confluo_at plan; and not __confluo_at serve; and not __confluo_at agent; and not __confluo_at probe; and not __confluo_at respond; and not __confluo_at blackholes; and not __confluo_at drops; and not __confluo_at sla; and not __confluo_at verdict; and not __confluo_at simulate; and not __confluo_at heatmap' -f -a heatmap -d 'draw latency and drops between pods, and name the pattern'
complete -c confluo-pingmesh -n 'not __confluo_at plan; and not __confluo_at serve; and not __confluo_at agent; and not __confluo_at probe; and not __confluo_at respond; and not __confluo_at blackholes; and not __confluo_at drops; and not __confluo_at sla; and not __confluo_at verdict; and not __confluo_at simulate; and not __confluo_at heatmap' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-pingmesh -n 'not __confluo_at plan; and not __confluo_at serve; and not __confluo_at agent; and not __confluo_at probe; and not __confluo_at respond; and not __confluo_at blackholes; and not __confluo_at drops; and not __confluo_at sla; and not __confluo_at verdict; and not __confluo_at simulate; and not __confluo_at heatmap' -l help -d 'Print the help.'
complete -c confluo-pingmesh -n 'not __confluo_at plan; and not __confluo_at serve; and not __confluo_at agent; and not __confluo_at probe; and not __confluo_at respond; and not __confluo_at blackholes; and not __confluo_at drops; and not __confluo_at sla; and not __confluo_at verdict; and not __confluo_at simulate; and not __confluo_at heatmap' -l version -d 'Print the version.'
complete -c confluo-pingmesh -n 'not __confluo_at plan; and not __confluo_at serve; and not __confluo_at agent; and not __confluo_at probe; and not __confluo_at respond; and not __confluo_at blackholes; and not __confluo_at drops; and not __confluo_at sla; and not __confluo_at verdict; and not __confluo_at simulate; and not __confluo_at heatmap' -f
complete -c confluo-pingmesh -n '__confluo_at plan' -l algo -x -d 'Probe graph: mesh, ring:N (the next N of a ring) or full (mesh).'
complete -c confluo-pingmesh -n '__confluo_at plan' -l unequal -x -a 'wrap skip' -d 'Match pods of different sizes: wrap or skip (wrap).'
complete -c confluo-pingmesh -n '__confluo_at plan' -l per-podset -x -d 'Let N servers of a podset probe other DCs and VIPs (2).'
complete -c confluo-pingmesh -n '__confluo_at plan' -l probe -x -d 'Kind of probe with payload, dscp, port (tcp; repeatable).'
complete -c confluo-pingmesh -n '__confluo_at plan' -l interval -x -d 'Probe each pair at this interval (10s).'
complete -c confluo-pingmesh -n '__confluo_at plan' -l timeout -x -d 'Count a probe as failed after TIME (9s).'
complete -c confluo-pingmesh -n '__confluo_at plan' -l max-peers -x -d 'Refuse plans with more peers per server (5000).'
complete -c confluo-pingmesh -n '__confluo_at plan' -l max-rate -x -d 'Stretch intervals to N probes/s per server (no limit).'
complete -c confluo-pingmesh -n '__confluo_at plan' -l lab -d 'Allow intervals below 10s; agents need --lab as well.'
complete -c confluo-pingmesh -n '__confluo_at plan' -l token -x -d 'Token of UDP probes: hexadecimal or \'random\' (default: unchanged).'
complete -c confluo-pingmesh -n '__confluo_at plan' -l sign -r -F -d 'Sign lists with this private key (Ed25519, PEM).'
complete -c confluo-pingmesh -n '__confluo_at plan' -l server -x -d 'Print only pairs probed by this server (repeatable).'
complete -c confluo-pingmesh -n '__confluo_at plan' -s f -l fields -x -a '(__confluo_list ts kind level outcome notes ip_version proto src_ip dst_ip src_port dst_port dscp seq payload retries hint rtt elapsed echo dns tls first_byte remote status errno list src dst src_pod dst_pod src_podset dst_podset src_dc dst_dc event reason peers probes skipped overflows listen_drops syn_retrans rss cpu fault rate detail help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-pingmesh -n '__confluo_at plan' -s o -l format -x -a 'yaml table tsv csv ndjson json stream arrow parquet' -d 'Write yaml, table, tsv, csv, ndjson, json, stream, arrow or parquet.  Default: lists in -w DIR yaml, large ones arrow; pairs a table on a terminal, otherwise stream.'
complete -c confluo-pingmesh -n '__confluo_at plan' -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-pingmesh -n '__confluo_at plan' -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-pingmesh -n '__confluo_at plan' -s w -l output -r -F -d 'Write to FILE, atomically; - is stdout.'
complete -c confluo-pingmesh -n '__confluo_at plan' -l force -d 'Overwrite the output file.'
complete -c confluo-pingmesh -n '__confluo_at plan' -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-pingmesh -n '__confluo_at plan' -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-pingmesh -n '__confluo_at plan' -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-pingmesh -n '__confluo_at plan' -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-pingmesh -n '__confluo_at plan' -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-pingmesh -n '__confluo_at plan' -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-pingmesh -n '__confluo_at plan' -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-pingmesh -n '__confluo_at plan' -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-pingmesh -n '__confluo_at plan' -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-pingmesh -n '__confluo_at plan' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-pingmesh -n '__confluo_at plan' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-pingmesh -n '__confluo_at plan' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-pingmesh -n '__confluo_at plan' -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-pingmesh -n '__confluo_at plan' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-pingmesh -n '__confluo_at plan' -l help -d 'Print the help.'
complete -c confluo-pingmesh -n '__confluo_at plan' -l version -d 'Print the version.'
complete -c confluo-pingmesh -n '__confluo_at serve' -l listen -x -d 'Listen at this address (repeatable; 127.0.0.1:8443).'
complete -c confluo-pingmesh -n '__confluo_at serve' -l cert -r -F -d 'Certificate of this controller (PEM).'
complete -c confluo-pingmesh -n '__confluo_at serve' -l key -r -F -d 'Private key, if not in the --cert file.'
complete -c confluo-pingmesh -n '__confluo_at serve' -l client-ca -r -F -d 'Require client certificates of this CA (PEM).'
complete -c confluo-pingmesh -n '__confluo_at serve' -l any-name -d 'Let a client certificate fetch all lists, not only the one of its name.'
complete -c confluo-pingmesh -n '__confluo_at serve' -l plain -d 'Allow HTTP on other than loopback addresses, behind a TLS proxy.'
complete -c confluo-pingmesh -n '__confluo_at serve' -l metrics -x -d 'Serve /metrics and /healthz there as well, over plain HTTP.'
complete -c confluo-pingmesh -n '__confluo_at serve' -l records -r -F -d 'Write the records of agents to this MultiLog.'
complete -c confluo-pingmesh -n '__confluo_at serve' -l append -d 'Append to LOG if it exists.'
complete -c confluo-pingmesh -n '__confluo_at serve' -l index -x -a '(__confluo_list ts kind level outcome notes ip_version proto src_ip dst_ip src_port dst_port dscp seq payload retries hint rtt elapsed echo dns tls first_byte remote status errno list src dst src_pod dst_pod src_podset dst_podset src_dc dst_dc event reason peers probes skipped overflows listen_drops syn_retrans rss cpu fault rate detail)' -d 'Index LOG by these fields while writing.'
complete -c confluo-pingmesh -n '__confluo_at serve' -l keep -x -d 'Remove the oldest rows of LOG: beyond 1h, beyond 10G.'
complete -c confluo-pingmesh -n '__confluo_at serve' -s Z -l user -x -a '(__fish_complete_users)' -d 'Switch to USER once all sockets are open.'
complete -c confluo-pingmesh -n '__confluo_at serve' -l sync -x -a 'none seal batch' -d 'Sync rows to disk at: none, seal or batch.'
complete -c confluo-pingmesh -n '__confluo_at serve' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-pingmesh -n '__confluo_at serve' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-pingmesh -n '__confluo_at serve' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-pingmesh -n '__confluo_at serve' -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-pingmesh -n '__confluo_at serve' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-pingmesh -n '__confluo_at serve' -l help -d 'Print the help.'
complete -c confluo-pingmesh -n '__confluo_at serve' -l version -d 'Print the version.'
complete -c confluo-pingmesh -n '__confluo_at serve' -f
complete -c confluo-pingmesh -n '__confluo_at serve' -a '(__fish_complete_directories)'
complete -c confluo-pingmesh -n '__confluo_at agent' -l controller -x -a '(__fish_complete_directories)' -d 'Fetch lists from https://HOST:PORT or a folder (repeatable: tried in order).'
complete -c confluo-pingmesh -n '__confluo_at agent' -l name -x -d 'Pinglist to fetch (default: this host\'s name).'
complete -c confluo-pingmesh -n '__confluo_at agent' -l allow -x -d 'Permit targets in this network (repeatable; default: only this host).'
complete -c confluo-pingmesh -n '__confluo_at agent' -l every -x -d 'Fetch the list at this interval (5m).'
complete -c confluo-pingmesh -n '__confluo_at agent' -l deadline -x -d 'Give up a fetch after TIME (10s).'
complete -c confluo-pingmesh -n '__confluo_at agent' -l trust -r -F -d 'Require lists signed by this public key (Ed25519, PEM).'
complete -c confluo-pingmesh -n '__confluo_at agent' -l ca -r -F -d 'CA bundle that verifies the controller (PEM; default: the system\'s).'
complete -c confluo-pingmesh -n '__confluo_at agent' -l cert -r -F -d 'Client certificate for the controller (PEM).'
complete -c confluo-pingmesh -n '__confluo_at agent' -l key -r -F -d 'Private key, if not in the --cert file.'
complete -c confluo-pingmesh -n '__confluo_at agent' -l listen -x -d 'Answer probes at this address (repeatable; :8765), with DSCP if given.'
complete -c confluo-pingmesh -n '__confluo_at agent' -l no-respond -d 'Do not answer probes.'
complete -c confluo-pingmesh -n '__confluo_at agent' -l bind -x -d 'Probe from this address (one of each IP version).'
complete -c confluo-pingmesh -n '__confluo_at agent' -l place -x -d 'Location of this server, if its list has none.'
complete -c confluo-pingmesh -n '__confluo_at agent' -l metrics -x -d 'Serve GET /metrics for Prometheus at this address.'
complete -c confluo-pingmesh -n '__confluo_at agent' -l send -x -d 'Send records to the controller at this interval.'
complete -c confluo-pingmesh -n '__confluo_at agent' -l memory -x -d 'End above this resident memory (64MiB).'
complete -c confluo-pingmesh -n '__confluo_at agent' -l cpu -x -d 'Limit probing to this share of one core (10%).'
complete -c confluo-pingmesh -n '__confluo_at agent' -l lab -d 'Lift the limits on intervals and rates; mark each record.'
complete -c confluo-pingmesh -n '__confluo_at agent' -l duration -x -d 'Stop after TIME.'
complete -c confluo-pingmesh -n '__confluo_at agent' -s Z -l user -x -a '(__fish_complete_users)' -d 'Switch to USER once all sockets are open.'
complete -c confluo-pingmesh -n '__confluo_at agent' -s f -l fields -x -a '(__confluo_list ts kind level outcome notes ip_version proto src_ip dst_ip src_port dst_port dscp seq payload retries hint rtt elapsed echo dns tls first_byte remote status errno list src dst src_pod dst_pod src_podset dst_podset src_dc dst_dc event reason peers probes skipped overflows listen_drops syn_retrans rss cpu fault rate detail help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-pingmesh -n '__confluo_at agent' -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet multilog' -d 'Write table, tsv, csv, ndjson, json, stream, arrow, parquet or multilog.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-pingmesh -n '__confluo_at agent' -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-pingmesh -n '__confluo_at agent' -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-pingmesh -n '__confluo_at agent' -s w -l output -r -F -d 'Write the MultiLog LOG; or a file, by suffix or -o FORMAT.'
complete -c confluo-pingmesh -n '__confluo_at agent' -l force -d 'Overwrite the output file.'
complete -c confluo-pingmesh -n '__confluo_at agent' -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-pingmesh -n '__confluo_at agent' -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-pingmesh -n '__confluo_at agent' -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-pingmesh -n '__confluo_at agent' -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-pingmesh -n '__confluo_at agent' -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-pingmesh -n '__confluo_at agent' -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-pingmesh -n '__confluo_at agent' -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-pingmesh -n '__confluo_at agent' -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-pingmesh -n '__confluo_at agent' -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-pingmesh -n '__confluo_at agent' -l append -d 'Append to LOG if it exists.'
complete -c confluo-pingmesh -n '__confluo_at agent' -l add-columns -d 'With --append, add to LOG the fields that it lacks.'
complete -c confluo-pingmesh -n '__confluo_at agent' -l index -x -a '(__confluo_list ts kind level outcome notes ip_version proto src_ip dst_ip src_port dst_port dscp seq payload retries hint rtt elapsed echo dns tls first_byte remote status errno list src dst src_pod dst_pod src_podset dst_podset src_dc dst_dc event reason peers probes skipped overflows listen_drops syn_retrans rss cpu fault rate detail)' -d 'Index LOG by these fields while writing.'
complete -c confluo-pingmesh -n '__confluo_at agent' -l keep -x -d 'Remove the oldest rows of LOG: beyond 1h, beyond 10G.'
complete -c confluo-pingmesh -n '__confluo_at agent' -l sync -x -a 'none seal batch' -d 'Sync rows to disk at: none, seal or batch.'
complete -c confluo-pingmesh -n '__confluo_at agent' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-pingmesh -n '__confluo_at agent' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-pingmesh -n '__confluo_at agent' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-pingmesh -n '__confluo_at agent' -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-pingmesh -n '__confluo_at agent' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-pingmesh -n '__confluo_at agent' -l help -d 'Print the help.'
complete -c confluo-pingmesh -n '__confluo_at agent' -l version -d 'Print the version.'
complete -c confluo-pingmesh -n '__confluo_at agent' -f
complete -c confluo-pingmesh -n '__confluo_at probe' -s c -l count -x -d 'Stop after N probes of each target.'
complete -c confluo-pingmesh -n '__confluo_at probe' -s i -l interval -x -d 'Probe each target at this interval (1s).'
complete -c confluo-pingmesh -n '__confluo_at probe' -l kind -x -a 'tcp echo http https udp icmp' -d 'Kind of probe: tcp, echo, http, https, udp, icmp (repeatable; tcp).'
complete -c confluo-pingmesh -n '__confluo_at probe' -l payload -x -d 'Send SIZE bytes, up to 64KiB (echo 1000, udp, icmp 48).'
complete -c confluo-pingmesh -n '__confluo_at probe' -l timeout -x -d 'Count a probe as failed after TIME (tcp 9s, udp 3s).'
complete -c confluo-pingmesh -n '__confluo_at probe' -l dscp -x -a 'cs1 ef' -d 'Class of service: cs1, ef, 8.'
complete -c confluo-pingmesh -n '__confluo_at probe' -l source -x -d 'Probe from this source address.'
complete -c confluo-pingmesh -n '__confluo_at probe' -l token -x -d 'Token of udp probes, as given to the responders.'
complete -c confluo-pingmesh -n '__confluo_at probe' -s 4 -d 'Use only IPv4 addresses of names.'
complete -c confluo-pingmesh -n '__confluo_at probe' -s 6 -d 'Use only IPv6 addresses of names.'
complete -c confluo-pingmesh -n '__confluo_at probe' -l counters -l no-counters -d 'Read overflow counters of responders (default: on port 8765).'
complete -c confluo-pingmesh -n '__confluo_at probe' -l insecure -d 'Accept any certificate of https targets.'
complete -c confluo-pingmesh -n '__confluo_at probe' -l lab -d 'Lift the limits on intervals and rates; mark each record.'
complete -c confluo-pingmesh -n '__confluo_at probe' -l duration -x -d 'Stop after TIME.'
complete -c confluo-pingmesh -n '__confluo_at probe' -s f -l fields -x -a '(__confluo_list ts kind level outcome notes ip_version proto src_ip dst_ip src_port dst_port dscp seq payload retries hint rtt elapsed echo dns tls first_byte remote status errno list src dst src_pod dst_pod src_podset dst_podset src_dc dst_dc event reason peers probes skipped overflows listen_drops syn_retrans rss cpu fault rate detail help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-pingmesh -n '__confluo_at probe' -s o -l format -x -a 'lines table tsv csv ndjson json stream arrow parquet multilog' -d 'Write lines, table, tsv, csv, ndjson, json, stream, arrow, parquet or multilog.  Default: lines on a terminal, otherwise stream.'
complete -c confluo-pingmesh -n '__confluo_at probe' -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-pingmesh -n '__confluo_at probe' -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-pingmesh -n '__confluo_at probe' -s w -l output -r -F -d 'Write the MultiLog LOG; or a file, by suffix or -o FORMAT.'
complete -c confluo-pingmesh -n '__confluo_at probe' -l force -d 'Overwrite the output file.'
complete -c confluo-pingmesh -n '__confluo_at probe' -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-pingmesh -n '__confluo_at probe' -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-pingmesh -n '__confluo_at probe' -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-pingmesh -n '__confluo_at probe' -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-pingmesh -n '__confluo_at probe' -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-pingmesh -n '__confluo_at probe' -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-pingmesh -n '__confluo_at probe' -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-pingmesh -n '__confluo_at probe' -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-pingmesh -n '__confluo_at probe' -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-pingmesh -n '__confluo_at probe' -l append -d 'Append to LOG if it exists.'
complete -c confluo-pingmesh -n '__confluo_at probe' -l add-columns -d 'With --append, add to LOG the fields that it lacks.'
complete -c confluo-pingmesh -n '__confluo_at probe' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-pingmesh -n '__confluo_at probe' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-pingmesh -n '__confluo_at probe' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-pingmesh -n '__confluo_at probe' -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-pingmesh -n '__confluo_at probe' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-pingmesh -n '__confluo_at probe' -l help -d 'Print the help.'
complete -c confluo-pingmesh -n '__confluo_at probe' -l version -d 'Print the version.'
complete -c confluo-pingmesh -n '__confluo_at probe' -f
complete -c confluo-pingmesh -n '__confluo_at respond' -l listen -x -d 'Listen at this address (repeatable; all addresses, port 8765).'
complete -c confluo-pingmesh -n '__confluo_at respond' -l qos -x -d 'Listen on PORT too, with answers of CLASS: cs1, ef, 8 (repeatable).'
complete -c confluo-pingmesh -n '__confluo_at respond' -l token -x -d 'Answer udp probes with this token (repeatable; default: none).'
complete -c confluo-pingmesh -n '__confluo_at respond' -l backlog -x -d 'Limit connections waiting to be accepted (1024).'
complete -c confluo-pingmesh -n '__confluo_at respond' -l connections -x -d 'Limit connections at once (4096).'
complete -c confluo-pingmesh -n '__confluo_at respond' -l idle -x -d 'Close connections after TIME without a byte (5s).'
complete -c confluo-pingmesh -n '__confluo_at respond' -l rate -x -d 'Limit connections, and udp probes, to N per second.'
complete -c confluo-pingmesh -n '__confluo_at respond' -l name -x -d 'Name of this host in the records.'
complete -c confluo-pingmesh -n '__confluo_at respond' -l every -x -d 'Write a record at this interval (10s).'
complete -c confluo-pingmesh -n '__confluo_at respond' -l duration -x -d 'Stop after TIME.'
complete -c confluo-pingmesh -n '__confluo_at respond' -s Z -l user -x -a '(__fish_complete_users)' -d 'Switch to USER once all sockets are open.'
complete -c confluo-pingmesh -n '__confluo_at respond' -s f -l fields -x -a '(__confluo_list ts kind level outcome notes ip_version proto src_ip dst_ip src_port dst_port dscp seq payload retries hint rtt elapsed echo dns tls first_byte remote status errno list src dst src_pod dst_pod src_podset dst_podset src_dc dst_dc event reason peers probes skipped overflows listen_drops syn_retrans rss cpu fault rate detail help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-pingmesh -n '__confluo_at respond' -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet multilog' -d 'Write table, tsv, csv, ndjson, json, stream, arrow, parquet or multilog.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-pingmesh -n '__confluo_at respond' -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-pingmesh -n '__confluo_at respond' -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-pingmesh -n '__confluo_at respond' -s w -l output -r -F -d 'Write the MultiLog LOG; or a file, by suffix or -o FORMAT.'
complete -c confluo-pingmesh -n '__confluo_at respond' -l force -d 'Overwrite the output file.'
complete -c confluo-pingmesh -n '__confluo_at respond' -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-pingmesh -n '__confluo_at respond' -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-pingmesh -n '__confluo_at respond' -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-pingmesh -n '__confluo_at respond' -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-pingmesh -n '__confluo_at respond' -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-pingmesh -n '__confluo_at respond' -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-pingmesh -n '__confluo_at respond' -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-pingmesh -n '__confluo_at respond' -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-pingmesh -n '__confluo_at respond' -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-pingmesh -n '__confluo_at respond' -l append -d 'Append to LOG if it exists.'
complete -c confluo-pingmesh -n '__confluo_at respond' -l add-columns -d 'With --append, add to LOG the fields that it lacks.'
complete -c confluo-pingmesh -n '__confluo_at respond' -l index -x -a '(__confluo_list ts kind level outcome notes ip_version proto src_ip dst_ip src_port dst_port dscp seq payload retries hint rtt elapsed echo dns tls first_byte remote status errno list src dst src_pod dst_pod src_podset dst_podset src_dc dst_dc event reason peers probes skipped overflows listen_drops syn_retrans rss cpu fault rate detail)' -d 'Index LOG by these fields while writing.'
complete -c confluo-pingmesh -n '__confluo_at respond' -l keep -x -d 'Remove the oldest rows of LOG: beyond 1h, beyond 10G.'
complete -c confluo-pingmesh -n '__confluo_at respond' -l sync -x -a 'none seal batch' -d 'Sync rows to disk at: none, seal or batch.'
complete -c confluo-pingmesh -n '__confluo_at respond' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-pingmesh -n '__confluo_at respond' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-pingmesh -n '__confluo_at respond' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-pingmesh -n '__confluo_at respond' -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-pingmesh -n '__confluo_at respond' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-pingmesh -n '__confluo_at respond' -l help -d 'Print the help.'
complete -c confluo-pingmesh -n '__confluo_at respond' -l version -d 'Print the version.'
complete -c confluo-pingmesh -n '__confluo_at respond' -f
complete -c confluo-pingmesh -n '__confluo_at blackholes' -s e -l expr -l where -x -d 'Only probes for which EXPR holds: confluo-expr(7).'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l topology -r -F -d 'Places of servers, for records that do not contain them.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l slice -x -d 'Decide per TIME whether a server is healthy (1m).'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l threshold -x -d 'Minimum score of a candidate ToR (50%).'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l group -x -d 'Minimum healthy servers of a ToR for a verdict (3).'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l least -x -d 'Minimum failures of a pair: type 1 N, type 2 M (5,3).'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l tries -x -d 'SYNs that a probe sends before it fails (3).'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l literal -d 'Count each pair for both of its ToRs, as the paper does.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l budget -x -d 'Propose at most N ToRs a day (20).'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l pairs -d 'Print the pairs, also those that a place explains.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l top -x -d 'Print at most N pairs (100).'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l engine -x -a 'local dask:// spark://' -d 'Compute on local (all cores), local:N, dask://HOST:PORT or spark://HOST:PORT.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l window -x -d 'Judge each TIME apart: 10m, 1h, 1d (all at once).'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l follow -d 'Wait for new probes; judge each window when it is complete.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l lateness -x -d '--follow: wait for late records up to TIME (90s).'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -s i -l input-format -x -a 'tsv csv ndjson json stream arrow parquet pcap pcapng flock tshark multilog' -d 'Input format, if not detected: tsv, csv, ndjson, json, stream, arrow, parquet, pcap, pcapng, flock, tshark or multilog.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l at -r -F -d 'Read the logs of a snapshot, as of its instant.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l partial -d 'Skip hosts that cannot be reached, with a note.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l no-archive -d 'Do not read the archives of a log.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l since -x -d 'Only records at or after TIME: 2026-11-20T10:00, @1700000000.25, 15m (ago), now.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l until -x -d 'Only records before TIME; a bare date includes that day.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -s f -l fields -x -a '(__confluo_list ts kind level outcome notes ip_version proto src_ip dst_ip src_port dst_port dscp seq payload retries hint rtt elapsed echo dns tls first_byte remote status errno list src dst src_pod dst_pod src_podset dst_podset src_dc dst_dc event reason peers probes skipped overflows listen_drops syn_retrans rss cpu fault rate detail help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet multilog' -d 'Write table, tsv, csv, ndjson, json, stream, arrow, parquet or multilog.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -s w -l output -r -F -d 'Write the MultiLog LOG; or a file, by suffix or -o FORMAT.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l force -d 'Overwrite the output file.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l append -d 'Append to LOG if it exists.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l add-columns -d 'With --append, add to LOG the fields that it lacks.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l help -d 'Print the help.'
complete -c confluo-pingmesh -n '__confluo_at blackholes' -l version -d 'Print the version.'
complete -c confluo-pingmesh -n '__confluo_at drops' -s e -l expr -l where -x -d 'Only probes for which EXPR holds: confluo-expr(7).'
complete -c confluo-pingmesh -n '__confluo_at drops' -l topology -r -F -d 'Places of servers, for records that do not contain them.'
complete -c confluo-pingmesh -n '__confluo_at drops' -l above -x -d 'Minimum drop rate of a fault (5e-4).'
complete -c confluo-pingmesh -n '__confluo_at drops' -l ratio -x -d 'Minimum ratio to the drop rate of all other probes (2).'
complete -c confluo-pingmesh -n '__confluo_at drops' -l lasting -x -d 'Shorter than TIME, and than a quarter of all: a burst (5m).'
complete -c confluo-pingmesh -n '__confluo_at drops' -l top -x -d 'Print the N worst pairs of servers (100).'
complete -c confluo-pingmesh -n '__confluo_at drops' -l flows -x -d 'Print the last N probes of each pair that lost packets (16).'
complete -c confluo-pingmesh -n '__confluo_at drops' -l all -d 'Print pairs of the whole fleet, also without a finding.'
complete -c confluo-pingmesh -n '__confluo_at drops' -l as-sent -d 'Print five-tuples as probed, also where the answer was lost.'
complete -c confluo-pingmesh -n '__confluo_at drops' -l engine -x -a 'local dask:// spark://' -d 'Compute on local (all cores), local:N, dask://HOST:PORT or spark://HOST:PORT.'
complete -c confluo-pingmesh -n '__confluo_at drops' -l window -x -d 'Judge each TIME apart: 10m, 1h, 1d (all at once).'
complete -c confluo-pingmesh -n '__confluo_at drops' -l follow -d 'Wait for new probes; judge each window when it is complete.'
complete -c confluo-pingmesh -n '__confluo_at drops' -l lateness -x -d '--follow: wait for late records up to TIME (90s).'
complete -c confluo-pingmesh -n '__confluo_at drops' -s i -l input-format -x -a 'tsv csv ndjson json stream arrow parquet pcap pcapng flock tshark multilog' -d 'Input format, if not detected: tsv, csv, ndjson, json, stream, arrow, parquet, pcap, pcapng, flock, tshark or multilog.'
complete -c confluo-pingmesh -n '__confluo_at drops' -l at -r -F -d 'Read the logs of a snapshot, as of its instant.'
complete -c confluo-pingmesh -n '__confluo_at drops' -l partial -d 'Skip hosts that cannot be reached, with a note.'
complete -c confluo-pingmesh -n '__confluo_at drops' -l no-archive -d 'Do not read the archives of a log.'
complete -c confluo-pingmesh -n '__confluo_at drops' -l since -x -d 'Only records at or after TIME: 2026-11-20T10:00, @1700000000.25, 15m (ago), now.'
complete -c confluo-pingmesh -n '__confluo_at drops' -l until -x -d 'Only records before TIME; a bare date includes that day.'
complete -c confluo-pingmesh -n '__confluo_at drops' -s f -l fields -x -a '(__confluo_list ts kind level outcome notes ip_version proto src_ip dst_ip src_port dst_port dscp seq payload retries hint rtt elapsed echo dns tls first_byte remote status errno list src dst src_pod dst_pod src_podset dst_podset src_dc dst_dc event reason peers probes skipped overflows listen_drops syn_retrans rss cpu fault rate detail help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-pingmesh -n '__confluo_at drops' -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet multilog' -d 'Write table, tsv, csv, ndjson, json, stream, arrow, parquet or multilog.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-pingmesh -n '__confluo_at drops' -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-pingmesh -n '__confluo_at drops' -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-pingmesh -n '__confluo_at drops' -s w -l output -r -F -d 'Write the MultiLog LOG; or a file, by suffix or -o FORMAT.'
complete -c confluo-pingmesh -n '__confluo_at drops' -l force -d 'Overwrite the output file.'
complete -c confluo-pingmesh -n '__confluo_at drops' -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-pingmesh -n '__confluo_at drops' -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-pingmesh -n '__confluo_at drops' -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-pingmesh -n '__confluo_at drops' -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-pingmesh -n '__confluo_at drops' -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-pingmesh -n '__confluo_at drops' -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-pingmesh -n '__confluo_at drops' -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-pingmesh -n '__confluo_at drops' -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-pingmesh -n '__confluo_at drops' -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-pingmesh -n '__confluo_at drops' -l append -d 'Append to LOG if it exists.'
complete -c confluo-pingmesh -n '__confluo_at drops' -l add-columns -d 'With --append, add to LOG the fields that it lacks.'
complete -c confluo-pingmesh -n '__confluo_at drops' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-pingmesh -n '__confluo_at drops' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-pingmesh -n '__confluo_at drops' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-pingmesh -n '__confluo_at drops' -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-pingmesh -n '__confluo_at drops' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-pingmesh -n '__confluo_at drops' -l help -d 'Print the help.'
complete -c confluo-pingmesh -n '__confluo_at drops' -l version -d 'Print the version.'
complete -c confluo-pingmesh -n '__confluo_at sla' -l by -x -a 'all server pod podset dc service' -d 'Group by all, server, pod, podset, dc, service, X_pair or fields (podset).'
complete -c confluo-pingmesh -n '__confluo_at sla' -l as -x -a 'source target' -d 'Count the probes that X sent (source) or received (target).'
complete -c confluo-pingmesh -n '__confluo_at sla' -s e -l expr -l where -x -d 'Only probes for which EXPR holds: confluo-expr(7).'
complete -c confluo-pingmesh -n '__confluo_at sla' -l rule -x -d 'Limit above which a group is bad (repeatable; \'drop > 1e-3\', \'p99 > 5ms\').'
complete -c confluo-pingmesh -n '__confluo_at sla' -l background -x -d 'Drop rate of a healthy network (threshold / 10).'
complete -c confluo-pingmesh -n '__confluo_at sla' -l false-alarm -x -d 'False alarm probability per group and window (1e-6).'
complete -c confluo-pingmesh -n '__confluo_at sla' -l power -x -d 'Power required to detect twice the threshold (0.9).'
complete -c confluo-pingmesh -n '__confluo_at sla' -l alerts -d 'Print alerts that begin or end instead of windows.'
complete -c confluo-pingmesh -n '__confluo_at sla' -l raise -x -d '--alerts: begin after N bad windows in a row (1).'
complete -c confluo-pingmesh -n '__confluo_at sla' -l calm -x -d '--alerts: end after N calm windows in a row (2).'
complete -c confluo-pingmesh -n '__confluo_at sla' -l topology -r -F -d '--by service: file that lists the servers.'
complete -c confluo-pingmesh -n '__confluo_at sla' -l signature -x -a 'linux linux-classic windows' -d 'Guess retries from times: linux, linux-classic or windows.'
complete -c confluo-pingmesh -n '__confluo_at sla' -l top -x -d 'Print only the N worst rows of each window.'
complete -c confluo-pingmesh -n '__confluo_at sla' -l metric -x -a 'drop failed p50 p99 p999' -d '--top: rank by drop, failed, p50, p99 or p999 (drop).'
complete -c confluo-pingmesh -n '__confluo_at sla' -l engine -x -a 'local dask:// spark://' -d 'Compute on local (all cores), local:N, dask://HOST:PORT or spark://HOST:PORT.'
complete -c confluo-pingmesh -n '__confluo_at sla' -l window -x -d 'Judge each TIME apart: 10m, 1h, 1d (all at once).'
complete -c confluo-pingmesh -n '__confluo_at sla' -l follow -d 'Wait for new probes; judge each window when it is complete.'
complete -c confluo-pingmesh -n '__confluo_at sla' -l lateness -x -d '--follow: wait for late records up to TIME (15s).'
complete -c confluo-pingmesh -n '__confluo_at sla' -s i -l input-format -x -a 'tsv csv ndjson json stream arrow parquet pcap pcapng flock tshark multilog' -d 'Input format, if not detected: tsv, csv, ndjson, json, stream, arrow, parquet, pcap, pcapng, flock, tshark or multilog.'
complete -c confluo-pingmesh -n '__confluo_at sla' -l at -r -F -d 'Read the logs of a snapshot, as of its instant.'
complete -c confluo-pingmesh -n '__confluo_at sla' -l partial -d 'Skip hosts that cannot be reached, with a note.'
complete -c confluo-pingmesh -n '__confluo_at sla' -l no-archive -d 'Do not read the archives of a log.'
complete -c confluo-pingmesh -n '__confluo_at sla' -l since -x -d 'Only records at or after TIME: 2026-11-20T10:00, @1700000000.25, 15m (ago), now.'
complete -c confluo-pingmesh -n '__confluo_at sla' -l until -x -d 'Only records before TIME; a bare date includes that day.'
complete -c confluo-pingmesh -n '__confluo_at sla' -s f -l fields -x -a '(__confluo_list ts kind level outcome notes ip_version proto src_ip dst_ip src_port dst_port dscp seq payload retries hint rtt elapsed echo dns tls first_byte remote status errno list src dst src_pod dst_pod src_podset dst_podset src_dc dst_dc event reason peers probes skipped overflows listen_drops syn_retrans rss cpu fault rate detail help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-pingmesh -n '__confluo_at sla' -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet multilog' -d 'Write table, tsv, csv, ndjson, json, stream, arrow, parquet or multilog.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-pingmesh -n '__confluo_at sla' -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-pingmesh -n '__confluo_at sla' -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-pingmesh -n '__confluo_at sla' -s w -l output -r -F -d 'Write the MultiLog LOG; or a file, by suffix or -o FORMAT.'
complete -c confluo-pingmesh -n '__confluo_at sla' -l force -d 'Overwrite the output file.'
complete -c confluo-pingmesh -n '__confluo_at sla' -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-pingmesh -n '__confluo_at sla' -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-pingmesh -n '__confluo_at sla' -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-pingmesh -n '__confluo_at sla' -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-pingmesh -n '__confluo_at sla' -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-pingmesh -n '__confluo_at sla' -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-pingmesh -n '__confluo_at sla' -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-pingmesh -n '__confluo_at sla' -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-pingmesh -n '__confluo_at sla' -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-pingmesh -n '__confluo_at sla' -l append -d 'Append to LOG if it exists.'
complete -c confluo-pingmesh -n '__confluo_at sla' -l add-columns -d 'With --append, add to LOG the fields that it lacks.'
complete -c confluo-pingmesh -n '__confluo_at sla' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-pingmesh -n '__confluo_at sla' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-pingmesh -n '__confluo_at sla' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-pingmesh -n '__confluo_at sla' -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-pingmesh -n '__confluo_at sla' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-pingmesh -n '__confluo_at sla' -l help -d 'Print the help.'
complete -c confluo-pingmesh -n '__confluo_at sla' -l version -d 'Print the version.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -l service -x -d 'Judge the servers of this service (--topology).'
complete -c confluo-pingmesh -n '__confluo_at verdict' -l servers -x -d 'Judge these servers, separated by commas.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -l topology -r -F -d 'File with the services, and the pods of servers.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -l before -x -d 'Compare with TIME before --since (as long as the span).'
complete -c confluo-pingmesh -n '__confluo_at verdict' -s e -l expr -l where -x -d 'Only probes for which EXPR holds: confluo-expr(7).'
complete -c confluo-pingmesh -n '__confluo_at verdict' -l rule -x -d 'Limit above which a group is bad (repeatable; \'drop > 1e-3\', \'p99 > 5ms\').'
complete -c confluo-pingmesh -n '__confluo_at verdict' -l false-alarm -x -d 'Chance that a healthy network is judged bad (1e-6).'
complete -c confluo-pingmesh -n '__confluo_at verdict' -l signature -x -a 'linux linux-classic windows' -d 'Guess retries from times: linux, linux-classic or windows.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -l engine -x -a 'local dask:// spark://' -d 'Compute on local (all cores), local:N, dask://HOST:PORT or spark://HOST:PORT.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -s i -l input-format -x -a 'tsv csv ndjson json stream arrow parquet pcap pcapng flock tshark multilog' -d 'Input format, if not detected: tsv, csv, ndjson, json, stream, arrow, parquet, pcap, pcapng, flock, tshark or multilog.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -l at -r -F -d 'Read the logs of a snapshot, as of its instant.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -l partial -d 'Skip hosts that cannot be reached, with a note.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -l no-archive -d 'Do not read the archives of a log.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -l since -x -d 'Only records at or after TIME: 2026-11-20T10:00, @1700000000.25, 15m (ago), now.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -l until -x -d 'Only records before TIME; a bare date includes that day.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -s f -l fields -x -a '(__confluo_list ts kind level outcome notes ip_version proto src_ip dst_ip src_port dst_port dscp seq payload retries hint rtt elapsed echo dns tls first_byte remote status errno list src dst src_pod dst_pod src_podset dst_podset src_dc dst_dc event reason peers probes skipped overflows listen_drops syn_retrans rss cpu fault rate detail help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet' -d 'Write table, tsv, csv, ndjson, json, stream, arrow or parquet.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -s w -l output -r -F -d 'Write to FILE, atomically; - is stdout.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -l force -d 'Overwrite the output file.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-pingmesh -n '__confluo_at verdict' -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -l help -d 'Print the help.'
complete -c confluo-pingmesh -n '__confluo_at verdict' -l version -d 'Print the version.'
complete -c confluo-pingmesh -n '__confluo_at simulate' -l topology -r -F -d 'Topology file as for plan (YAML; default: a grid).'
complete -c confluo-pingmesh -n '__confluo_at simulate' -l dcs -x -d 'Number of data centres (1).'
complete -c confluo-pingmesh -n '__confluo_at simulate' -l podsets -x -d 'Podsets per data centre (4).'
complete -c confluo-pingmesh -n '__confluo_at simulate' -l pods -x -d 'Pods per podset (4).'
complete -c confluo-pingmesh -n '__confluo_at simulate' -l servers -x -d 'Servers per pod (8).'
complete -c confluo-pingmesh -n '__confluo_at simulate' -l leaves -x -d 'Leaf switches per podset (4).'
complete -c confluo-pingmesh -n '__confluo_at simulate' -l spines -x -d 'Spine switches per data centre (8).'
complete -c confluo-pingmesh -n '__confluo_at simulate' -l per-podset -x -d 'Let N servers of a podset probe other data centres (2).'
complete -c confluo-pingmesh -n '__confluo_at simulate' -l fault -x -d 'Add a fault (repeatable).'
complete -c confluo-pingmesh -n '__confluo_at simulate' -l span -x -d 'Simulate this long (10m).'
complete -c confluo-pingmesh -n '__confluo_at simulate' -l start -x -d 'Start at TIME.'
complete -c confluo-pingmesh -n '__confluo_at simulate' -l interval -x -d 'Probe each pair at this interval (10s).'
complete -c confluo-pingmesh -n '__confluo_at simulate' -l hosts -x -d 'Write the counters of servers at this interval; 0: never (1m).'
complete -c confluo-pingmesh -n '__confluo_at simulate' -l noise -x -d 'Loss rate of handshakes in a pod, a DC, between DCs (1e-5,4e-5,1e-4).'
complete -c confluo-pingmesh -n '__confluo_at simulate' -l payload -x -d 'Echo N bytes; 0: connect only (0).'
complete -c confluo-pingmesh -n '__confluo_at simulate' -l classic -d 'Retry SYNs after 1 s and 3 s, as with tcp_syn_linear_timeouts=0.'
complete -c confluo-pingmesh -n '__confluo_at simulate' -l seed -x -d 'Seed of random numbers; same seed, same records (1).'
complete -c confluo-pingmesh -n '__confluo_at simulate' -s f -l fields -x -a '(__confluo_list ts kind level outcome notes ip_version proto src_ip dst_ip src_port dst_port dscp seq payload retries hint rtt elapsed echo dns tls first_byte remote status errno list src dst src_pod dst_pod src_podset dst_podset src_dc dst_dc event reason peers probes skipped overflows listen_drops syn_retrans rss cpu fault rate detail help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-pingmesh -n '__confluo_at simulate' -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet multilog' -d 'Write table, tsv, csv, ndjson, json, stream, arrow, parquet or multilog.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-pingmesh -n '__confluo_at simulate' -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-pingmesh -n '__confluo_at simulate' -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-pingmesh -n '__confluo_at simulate' -s w -l output -r -F -d 'Write the MultiLog LOG; or a file, by suffix or -o FORMAT.'
complete -c confluo-pingmesh -n '__confluo_at simulate' -l force -d 'Overwrite the output file.'
complete -c confluo-pingmesh -n '__confluo_at simulate' -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-pingmesh -n '__confluo_at simulate' -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-pingmesh -n '__confluo_at simulate' -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-pingmesh -n '__confluo_at simulate' -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-pingmesh -n '__confluo_at simulate' -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-pingmesh -n '__confluo_at simulate' -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-pingmesh -n '__confluo_at simulate' -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-pingmesh -n '__confluo_at simulate' -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-pingmesh -n '__confluo_at simulate' -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-pingmesh -n '__confluo_at simulate' -l append -d 'Append to LOG if it exists.'
complete -c confluo-pingmesh -n '__confluo_at simulate' -l add-columns -d 'With --append, add to LOG the fields that it lacks.'
complete -c confluo-pingmesh -n '__confluo_at simulate' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-pingmesh -n '__confluo_at simulate' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-pingmesh -n '__confluo_at simulate' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-pingmesh -n '__confluo_at simulate' -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-pingmesh -n '__confluo_at simulate' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-pingmesh -n '__confluo_at simulate' -l help -d 'Print the help.'
complete -c confluo-pingmesh -n '__confluo_at simulate' -l version -d 'Print the version.'
complete -c confluo-pingmesh -n '__confluo_at simulate' -f
complete -c confluo-pingmesh -n '__confluo_at heatmap' -s e -l expr -l where -x -d 'Only probes for which EXPR holds: confluo-expr(7).'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -l metric -x -a 'p50 p99 drop' -d 'Draw p50, p99 or drop (p99).'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -l by -x -a 'pod podset server dc' -d 'Draw a row per pod, podset, server, or dc (data centre) (pod).'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -l dc -x -d 'Draw only this data centre.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -l window -x -d 'Length of a window, or all: a single window (10m).'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -l when -x -d 'Draw the window that contains TIME (last complete one).'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -l green -x -d 'Draw values below LIMIT green (4ms; drops 0.05%).'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -l red -x -d 'Draw values above LIMIT red (5ms; drops 0.1%).'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -l topology -r -F -d 'Names and order of pods, also of silent ones.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -l patterns -d 'Print the pattern of each window, as records.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -l no-pairs -d 'Leave the server pairs of cells out of a page.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -l title -x -d 'Title of a page.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -l palette -x -a 'paper safe' -d 'paper: green to red; safe: blue to purple (paper).'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -l theme -x -a 'light dark auto' -d 'light, dark, or auto: that of the browser (auto).'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -l scale -x -d 'Scale of a PNG (2).'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -l engine -x -a 'local dask:// spark://' -d 'Compute on local (all cores), local:N, dask://HOST:PORT or spark://HOST:PORT.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -s i -l input-format -x -a 'tsv csv ndjson json stream arrow parquet pcap pcapng flock tshark multilog' -d 'Input format, if not detected: tsv, csv, ndjson, json, stream, arrow, parquet, pcap, pcapng, flock, tshark or multilog.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -l at -r -F -d 'Read the logs of a snapshot, as of its instant.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -l partial -d 'Skip hosts that cannot be reached, with a note.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -l no-archive -d 'Do not read the archives of a log.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -l since -x -d 'Only records at or after TIME: 2026-11-20T10:00, @1700000000.25, 15m (ago), now.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -l until -x -d 'Only records before TIME; a bare date includes that day.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -s f -l fields -x -a '(__confluo_list ts kind level outcome notes ip_version proto src_ip dst_ip src_port dst_port dscp seq payload retries hint rtt elapsed echo dns tls first_byte remote status errno list src dst src_pod dst_pod src_podset dst_podset src_dc dst_dc event reason peers probes skipped overflows listen_drops syn_retrans rss cpu fault rate detail help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -s o -l format -x -a 'svg html png table tsv csv ndjson json stream arrow parquet' -d 'Write svg, html, png, table, tsv, csv, ndjson, json, stream, arrow or parquet.  Default: a map on a terminal, otherwise tsv.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -s w -l output -r -F -d 'Write to FILE, atomically; - is stdout.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -l force -d 'Overwrite the output file.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -l help -d 'Print the help.'
complete -c confluo-pingmesh -n '__confluo_at heatmap' -l version -d 'Print the version.'

# command: confluo-replay
# Completion of confluo-replay for fish.  Made by completions/update from the options of the command and head.fish.

# Whether the verbs of the command line are these.
function __confluo_at
    set -l words (commandline -opc)
    set -e words[1]
    for verb in $argv
        test "$words[1]" = "$verb"
        or return 1
        set -e words[1]
    end
end

# Words with commas between them: each one after those that are already there.
function __confluo_list
    set -l before (commandline -ct | string replace -r '^--[a-z-]+=' '' | string replace -r '[^,]*$' '')
    printf '%s\n' $before$argv
end

# What the command confluo-NAME would offer for the rest of a line `confluo NAME ...`.
function __confluo_rest
    set -l words (commandline -opc)
    set -l name $words[2]
    set -e words[1..2]
    complete -C "confluo-$name "(string join ' ' -- (string escape -- $words) (commandline -ct))
end

complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -f -a diff -d 'compare two recordings or replays of TCP connections'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -f -a explain -d 'name every gap, retransmission and delayed acknowledgement of TCP'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -f -a queues -d 'replay switch queues: lengths, drops, and who shared them'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -f -a sample -d 'write times of records as runs, each within a bound, and back'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -l flow -x -d 'Replay this connection: SRC:PORT-DST:PORT/tcp (all).'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -l flows -r -F -d 'Replay only the connections in these records (-: stdin).'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -l tries -x -d 'Replay up to N times until it is the same (1).'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -l engine -x -a 'serial decoupled naive' -d 'serial: inputs in recorded order; decoupled, naive: see the manual (serial).'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -l trace -x -a '(__confluo_list tcp_probe cong_state retransmit)' -d 'Add what the kernel traces: tcp_probe, cong_state, retransmit.'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -l hold -d 'Before each try print how to enter its networks, and wait for Enter.'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -l as-packetdrill -d 'Replay nothing; write a script of one end for packetdrill.'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -s i -l input-format -x -a 'tsv csv ndjson json stream arrow parquet pcap pcapng flock tshark multilog' -d 'Input format, if not detected: tsv, csv, ndjson, json, stream, arrow, parquet, pcap, pcapng, flock, tshark or multilog.'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -l at -r -F -d 'Read the logs of a snapshot, as of its instant.'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -l partial -d 'Skip hosts that cannot be reached, with a note.'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -l no-archive -d 'Do not read the archives of a log.'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -s f -l fields -x -a '(__confluo_list ts kind notes ip_version proto src_ip dst_ip src_port dst_port cookie role count step number number_step tx tx_step rx rx_step call bytes asked flags value name text timer ip_id segments gap digest seq ack len tcp_flags window sack ecn tsval tsecr snd_una snd_nxt cwnd ssthresh srtt rcv_wnd snd_wnd ca_state gaps tx_gaps rx_gaps number_gaps sizes marks help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet pcap multilog' -d 'Write table, tsv, csv, ndjson, json, stream, arrow, parquet, pcap or multilog.  Default: nothing; of -w, the format of its suffix.'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -s w -l output -r -F -d 'Write the MultiLog LOG; or a file, by suffix or -o FORMAT.'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -l force -d 'Overwrite the output file.'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -l append -d 'Append to LOG if it exists.'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -l add-columns -d 'With --append, add to LOG the fields that it lacks.'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -l help -d 'Print the help.'
complete -c confluo-replay -n 'not __confluo_at diff; and not __confluo_at explain; and not __confluo_at queues; and not __confluo_at sample' -l version -d 'Print the version.'
complete -c confluo-replay -n '__confluo_at diff' -l flow -x -d 'Compare only this connection.'
complete -c confluo-replay -n '__confluo_at diff' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-replay -n '__confluo_at diff' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-replay -n '__confluo_at diff' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-replay -n '__confluo_at diff' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-replay -n '__confluo_at diff' -l help -d 'Print the help.'
complete -c confluo-replay -n '__confluo_at diff' -l version -d 'Print the version.'
complete -c confluo-replay -n '__confluo_at explain' -l by -x -a 'cause size' -d 'Sum the time by cause, or by size and cause of messages.'
complete -c confluo-replay -n '__confluo_at explain' -l slowest -x -d 'Only the slowest messages, e.g. 1%.'
complete -c confluo-replay -n '__confluo_at explain' -l messages -d 'Print one record per message.'
complete -c confluo-replay -n '__confluo_at explain' -l flow -x -d 'Only this connection, SRC:PORT-DST:PORT; may be repeated.'
complete -c confluo-replay -n '__confluo_at explain' -l flows -r -F -d 'Only the connections in these records (-: stdin).'
complete -c confluo-replay -n '__confluo_at explain' -l gap -x -d 'Shortest wait that is explained (1ms).'
complete -c confluo-replay -n '__confluo_at explain' -s i -l input-format -x -a 'tsv csv ndjson json stream arrow parquet pcap pcapng flock tshark multilog' -d 'Input format, if not detected: tsv, csv, ndjson, json, stream, arrow, parquet, pcap, pcapng, flock, tshark or multilog.'
complete -c confluo-replay -n '__confluo_at explain' -l at -r -F -d 'Read the logs of a snapshot, as of its instant.'
complete -c confluo-replay -n '__confluo_at explain' -l partial -d 'Skip hosts that cannot be reached, with a note.'
complete -c confluo-replay -n '__confluo_at explain' -l no-archive -d 'Do not read the archives of a log.'
complete -c confluo-replay -n '__confluo_at explain' -s f -l fields -x -a '(__confluo_list ts event name label why cause certainty missing ip_version proto src_ip dst_ip src_port dst_port duration trigger n seq len packet previous_packet trigger_packet flight window rtt age message flow help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-replay -n '__confluo_at explain' -s o -l format -x -a 'svg html table tsv csv ndjson json stream arrow parquet multilog' -d 'Write svg, html, table, tsv, csv, ndjson, json, stream, arrow, parquet or multilog.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-replay -n '__confluo_at explain' -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-replay -n '__confluo_at explain' -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-replay -n '__confluo_at explain' -s w -l output -r -F -d 'Write the MultiLog LOG; or a file, by suffix or -o FORMAT.'
complete -c confluo-replay -n '__confluo_at explain' -l force -d 'Overwrite the output file.'
complete -c confluo-replay -n '__confluo_at explain' -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-replay -n '__confluo_at explain' -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-replay -n '__confluo_at explain' -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-replay -n '__confluo_at explain' -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-replay -n '__confluo_at explain' -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-replay -n '__confluo_at explain' -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-replay -n '__confluo_at explain' -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-replay -n '__confluo_at explain' -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-replay -n '__confluo_at explain' -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-replay -n '__confluo_at explain' -l append -d 'Append to LOG if it exists.'
complete -c confluo-replay -n '__confluo_at explain' -l add-columns -d 'With --append, add to LOG the fields that it lacks.'
complete -c confluo-replay -n '__confluo_at explain' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-replay -n '__confluo_at explain' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-replay -n '__confluo_at explain' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-replay -n '__confluo_at explain' -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-replay -n '__confluo_at explain' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-replay -n '__confluo_at explain' -l help -d 'Print the help.'
complete -c confluo-replay -n '__confluo_at explain' -l version -d 'Print the version.'
complete -c confluo-replay -n '__confluo_at queues' -l topology -r -F -d 'Topology file: links, speeds, delays and buffers.'
complete -c confluo-replay -n '__confluo_at queues' -l paths -r -F -d 'Paths of flows from confluo-trace (repeatable).'
complete -c confluo-replay -n '__confluo_at queues' -l drops -x -a 'recorded buffer' -d 'recorded: drop packets known to be lost; buffer: where there is no room.'
complete -c confluo-replay -n '__confluo_at queues' -l simulate -x -d 'Make up traffic of this length instead of inputs.'
complete -c confluo-replay -n '__confluo_at queues' -l load -x -d 'Simulated: share of the hosts\' speed that flows use (30%).'
complete -c confluo-replay -n '__confluo_at queues' -l incasts -x -d 'Simulated: incasts a second (2400).'
complete -c confluo-replay -n '__confluo_at queues' -l seed -x -d 'Seed of traffic and clocks (1).'
complete -c confluo-replay -n '__confluo_at queues' -l clock-error -x -d 'Shift the clock of each host by up to TIME (0).'
complete -c confluo-replay -n '__confluo_at queues' -l sampling-error -x -d 'Infer times by Algorithm 1, within TIME.'
complete -c confluo-replay -n '__confluo_at queues' -l picture -r -F -d 'Draw the queues over time, too, as a page.'
complete -c confluo-replay -n '__confluo_at queues' -l score -d 'Print drop error and queue difference of replays with these errors.'
complete -c confluo-replay -n '__confluo_at queues' -s i -l input-format -x -a 'tsv csv ndjson json stream arrow parquet pcap pcapng flock tshark multilog' -d 'Input format, if not detected: tsv, csv, ndjson, json, stream, arrow, parquet, pcap, pcapng, flock, tshark or multilog.'
complete -c confluo-replay -n '__confluo_at queues' -l at -r -F -d 'Read the logs of a snapshot, as of its instant.'
complete -c confluo-replay -n '__confluo_at queues' -l partial -d 'Skip hosts that cannot be reached, with a note.'
complete -c confluo-replay -n '__confluo_at queues' -l no-archive -d 'Do not read the archives of a log.'
complete -c confluo-replay -n '__confluo_at queues' -s f -l fields -x -a '(__confluo_list ts seen delay reordered ip_version proto src_ip dst_ip src_port dst_port ip_id tcp_seq payload_len help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-replay -n '__confluo_at queues' -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet multilog' -d 'Write table, tsv, csv, ndjson, json, stream, arrow, parquet or multilog.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-replay -n '__confluo_at queues' -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-replay -n '__confluo_at queues' -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-replay -n '__confluo_at queues' -s w -l output -r -F -d 'Write the MultiLog LOG; or a file, by suffix or -o FORMAT.'
complete -c confluo-replay -n '__confluo_at queues' -l force -d 'Overwrite the output file.'
complete -c confluo-replay -n '__confluo_at queues' -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-replay -n '__confluo_at queues' -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-replay -n '__confluo_at queues' -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-replay -n '__confluo_at queues' -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-replay -n '__confluo_at queues' -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-replay -n '__confluo_at queues' -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-replay -n '__confluo_at queues' -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-replay -n '__confluo_at queues' -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-replay -n '__confluo_at queues' -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-replay -n '__confluo_at queues' -l append -d 'Append to LOG if it exists.'
complete -c confluo-replay -n '__confluo_at queues' -l add-columns -d 'With --append, add to LOG the fields that it lacks.'
complete -c confluo-replay -n '__confluo_at queues' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-replay -n '__confluo_at queues' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-replay -n '__confluo_at queues' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-replay -n '__confluo_at queues' -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-replay -n '__confluo_at queues' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-replay -n '__confluo_at queues' -l help -d 'Print the help.'
complete -c confluo-replay -n '__confluo_at queues' -l version -d 'Print the version.'
complete -c confluo-replay -n '__confluo_at sample' -l by -x -a '(__confluo_list ts kind notes ip_version proto src_ip dst_ip src_port dst_port cookie role count step number number_step tx tx_step rx rx_step call bytes asked flags value name text timer ip_id segments gap digest seq ack len tcp_flags window sack ecn tsval tsecr snd_una snd_nxt cwnd ssthresh srtt rcv_wnd snd_wnd ca_state gaps tx_gaps rx_gaps number_gaps sizes marks)' -d 'Records with equal FIELDS are a sequence (the flow).'
complete -c confluo-replay -n '__confluo_at sample' -l threshold -x -d 'No time is further from its own than TIME (5us).'
complete -c confluo-replay -n '__confluo_at sample' -l gap -x -d 'End a run at gaps above TIME instead: errors have no bound.'
complete -c confluo-replay -n '__confluo_at sample' -l expand -d 'Read runs, and write each of their records.'
complete -c confluo-replay -n '__confluo_at sample' -s i -l input-format -x -a 'tsv csv ndjson json stream arrow parquet pcap pcapng flock tshark multilog' -d 'Input format, if not detected: tsv, csv, ndjson, json, stream, arrow, parquet, pcap, pcapng, flock, tshark or multilog.'
complete -c confluo-replay -n '__confluo_at sample' -l at -r -F -d 'Read the logs of a snapshot, as of its instant.'
complete -c confluo-replay -n '__confluo_at sample' -l partial -d 'Skip hosts that cannot be reached, with a note.'
complete -c confluo-replay -n '__confluo_at sample' -l no-archive -d 'Do not read the archives of a log.'
complete -c confluo-replay -n '__confluo_at sample' -s f -l fields -x -a '(__confluo_list ts kind notes ip_version proto src_ip dst_ip src_port dst_port cookie role count step number number_step tx tx_step rx rx_step call bytes asked flags value name text timer ip_id segments gap digest seq ack len tcp_flags window sack ecn tsval tsecr snd_una snd_nxt cwnd ssthresh srtt rcv_wnd snd_wnd ca_state gaps tx_gaps rx_gaps number_gaps sizes marks help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-replay -n '__confluo_at sample' -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet multilog' -d 'Write table, tsv, csv, ndjson, json, stream, arrow, parquet or multilog.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-replay -n '__confluo_at sample' -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-replay -n '__confluo_at sample' -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-replay -n '__confluo_at sample' -s w -l output -r -F -d 'Write the MultiLog LOG; or a file, by suffix or -o FORMAT.'
complete -c confluo-replay -n '__confluo_at sample' -l force -d 'Overwrite the output file.'
complete -c confluo-replay -n '__confluo_at sample' -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-replay -n '__confluo_at sample' -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-replay -n '__confluo_at sample' -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-replay -n '__confluo_at sample' -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-replay -n '__confluo_at sample' -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-replay -n '__confluo_at sample' -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-replay -n '__confluo_at sample' -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-replay -n '__confluo_at sample' -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-replay -n '__confluo_at sample' -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-replay -n '__confluo_at sample' -l append -d 'Append to LOG if it exists.'
complete -c confluo-replay -n '__confluo_at sample' -l add-columns -d 'With --append, add to LOG the fields that it lacks.'
complete -c confluo-replay -n '__confluo_at sample' -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-replay -n '__confluo_at sample' -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-replay -n '__confluo_at sample' -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-replay -n '__confluo_at sample' -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-replay -n '__confluo_at sample' -s h -d 'Print usage, the main options and examples.'
complete -c confluo-replay -n '__confluo_at sample' -l help -d 'Print the help.'
complete -c confluo-replay -n '__confluo_at sample' -l version -d 'Print the version.'

# command: confluo-monitor
# Completion of confluo-monitor for fish.  Made by completions/update from the options of the command and head.fish.

# Whether the verbs of the command line are these.
function __confluo_at
    set -l words (commandline -opc)
    set -e words[1]
    for verb in $argv
        test "$words[1]" = "$verb"
        or return 1
        set -e words[1]
    end
end

# Words with commas between them: each one after those that are already there.
function __confluo_list
    set -l before (commandline -ct | string replace -r '^--[a-z-]+=' '' | string replace -r '[^,]*$' '')
    printf '%s\n' $before$argv
end

# What the command confluo-NAME would offer for the rest of a line `confluo NAME ...`.
function __confluo_rest
    set -l words (commandline -opc)
    set -l name $words[2]
    set -e words[1..2]
    complete -C "confluo-$name "(string join ' ' -- (string escape -- $words) (commandline -ct))
end

complete -c confluo-monitor -s t -l trigger -x -d 'NAME: CONDITION over WINDOW [every PERIOD] [by KEYS] ...'
complete -c confluo-monitor -l triggers -r -F -d 'Triggers from a YAML file (repeatable).'
complete -c confluo-monitor -l list -d 'Print the parsed triggers.'
complete -c confluo-monitor -l check -d 'Check the triggers, then end.'
complete -c confluo-monitor -l once -d 'Evaluate once; exit status 0 if a trigger fires, else 1.'
complete -c confluo-monitor -l since -x -d 'Replay the records from TIME on, then end.'
complete -c confluo-monitor -l until -x -d 'With --since, --once: up to TIME, not the newest record.'
complete -c confluo-monitor -l alerts -r -F -a 'none' -d 'Keep alerts in this MultiLog (NAME.alerts.ml), or none.'
complete -c confluo-monitor -l wait -x -d 'Wait up to TIME for another monitor of the same alerts to end (0).'
complete -c confluo-monitor -l lag -x -d 'Wait TIME for late records after a tick (200ms).'
complete -c confluo-monitor -l host-wait -x -d 'Wait TIME for a host that does not answer (10s).'
complete -c confluo-monitor -l catch-up -x -d 'Evaluate ticks missed by an earlier monitor, at most TIME back (1h).'
complete -c confluo-monitor -l exec -x -d 'Run CMD for each alert, with the alert as NDJSON on stdin.'
complete -c confluo-monitor -l exec-max -x -d 'Run at most N commands at once (4).'
complete -c confluo-monitor -l metrics -x -d 'Serve GET /metrics for Prometheus at this address (127.0.0.1).'
complete -c confluo-monitor -l webhook -x -d 'POST each alert to URL as JSON, until the server took it.'
complete -c confluo-monitor -l analyze -x -a 'tcp maxseq' -d 'Add fields derived from earlier packets: tcp, or a state.'
complete -c confluo-monitor -l analyze-flows -x -d 'Track at most N flows at a time (262144).'
complete -c confluo-monitor -s f -l fields -x -a '(__confluo_list ts trigger event value threshold rows window lasted key ip_version proto src_ip dst_ip src_port dst_port values condition key_id host severity labels text help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-monitor -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet' -d 'Write table, tsv, csv, ndjson, json, stream, arrow or parquet.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-monitor -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-monitor -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-monitor -s w -l output -r -F -d 'Write to FILE, atomically; - is stdout.'
complete -c confluo-monitor -l force -d 'Overwrite the output file.'
complete -c confluo-monitor -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-monitor -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-monitor -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-monitor -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-monitor -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-monitor -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-monitor -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-monitor -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-monitor -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-monitor -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-monitor -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-monitor -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-monitor -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-monitor -s h -d 'Print usage, the main options and examples.'
complete -c confluo-monitor -l help -d 'Print the help.'
complete -c confluo-monitor -l version -d 'Print the version.'

# command: confluo-index
# Completion of confluo-index for fish.  Made by completions/update from the options of the command and head.fish.

# Whether the verbs of the command line are these.
function __confluo_at
    set -l words (commandline -opc)
    set -e words[1]
    for verb in $argv
        test "$words[1]" = "$verb"
        or return 1
        set -e words[1]
    end
end

# Words with commas between them: each one after those that are already there.
function __confluo_list
    set -l before (commandline -ct | string replace -r '^--[a-z-]+=' '' | string replace -r '[^,]*$' '')
    printf '%s\n' $before$argv
end

# What the command confluo-NAME would offer for the rest of a line `confluo NAME ...`.
function __confluo_rest
    set -l words (commandline -opc)
    set -l name $words[2]
    set -e words[1..2]
    complete -C "confluo-$name "(string join ' ' -- (string escape -- $words) (commandline -ct))
end

complete -c confluo-index -l filter -x -d 'add aggregate: aggregate the rows of this filter.'
complete -c confluo-index -l where -x -d 'add aggregate: aggregate the rows for which EXPR holds.'
complete -c confluo-index -l by -x -a '(__confluo_list ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number)' -d 'add aggregate: group by these keys, as confluo-query --by.'
complete -c confluo-index -l bucket -x -d 'add aggregate: aggregate per TIME (1ms).'
complete -c confluo-index -l define -r -F -a 'maxseq' -d 'add state: take this definition, as confluo-query --state.'
complete -c confluo-index -l follow -d 'Update the views as the log grows, until interrupted.'
complete -c confluo-index -l interval -x -d '--follow: check for new rows every TIME (200ms).'
complete -c confluo-index -l wait -x -d 'Wait up to TIME for another maintainer (5s).'
complete -c confluo-index -l stat -d 'List the views at the end.'
complete -c confluo-index -s f -l fields -x -a '(__confluo_list ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-index -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet' -d 'Write table, tsv, csv, ndjson, json, stream, arrow or parquet.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-index -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-index -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-index -s w -l output -r -F -d 'Write to FILE, atomically; - is stdout.'
complete -c confluo-index -l force -d 'Overwrite the output file.'
complete -c confluo-index -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-index -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-index -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-index -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-index -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-index -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-index -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-index -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-index -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-index -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-index -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-index -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-index -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-index -s h -d 'Print usage, the main options and examples.'
complete -c confluo-index -l help -d 'Print the help.'
complete -c confluo-index -l version -d 'Print the version.'
complete -c confluo-index -F -a 'add drop list update rebuild check'
complete -c confluo-index -F -a 'add drop list update rebuild check filter aggregate state ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number'

# command: confluo-topology
# Completion of confluo-topology for fish.  Made by completions/update from the options of the command and head.fish.

# Whether the verbs of the command line are these.
function __confluo_at
    set -l words (commandline -opc)
    set -e words[1]
    for verb in $argv
        test "$words[1]" = "$verb"
        or return 1
        set -e words[1]
    end
end

# Words with commas between them: each one after those that are already there.
function __confluo_list
    set -l before (commandline -ct | string replace -r '^--[a-z-]+=' '' | string replace -r '[^,]*$' '')
    printf '%s\n' $before$argv
end

# What the command confluo-NAME would offer for the rest of a line `confluo NAME ...`.
function __confluo_rest
    set -l words (commandline -opc)
    set -l name $words[2]
    set -e words[1..2]
    complete -C "confluo-$name "(string join ' ' -- (string escape -- $words) (commandline -ct))
end

complete -c confluo-topology -s w -l output -r -F -d 'Write to PATH; default: standard output.'
complete -c confluo-topology -l force -d 'Overwrite the output file.'
complete -c confluo-topology -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-topology -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-topology -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-topology -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-topology -s h -d 'Print usage, the main options and examples.'
complete -c confluo-topology -l help -d 'Print the help.'
complete -c confluo-topology -l version -d 'Print the version.'

# command: confluo-info
# Completion of confluo-info for fish.  Made by completions/update from the options of the command and head.fish.

# Whether the verbs of the command line are these.
function __confluo_at
    set -l words (commandline -opc)
    set -e words[1]
    for verb in $argv
        test "$words[1]" = "$verb"
        or return 1
        set -e words[1]
    end
end

# Words with commas between them: each one after those that are already there.
function __confluo_list
    set -l before (commandline -ct | string replace -r '^--[a-z-]+=' '' | string replace -r '[^,]*$' '')
    printf '%s\n' $before$argv
end

# What the command confluo-NAME would offer for the rest of a line `confluo NAME ...`.
function __confluo_rest
    set -l words (commandline -opc)
    set -l name $words[2]
    set -e words[1..2]
    complete -C "confluo-$name "(string join ' ' -- (string escape -- $words) (commandline -ct))
end

complete -c confluo-info -s i -l input-format -x -a 'tsv csv ndjson json stream arrow parquet pcap pcapng flock tshark multilog' -d 'Input format, if not detected: tsv, csv, ndjson, json, stream, arrow, parquet, pcap, pcapng, flock, tshark or multilog.'
complete -c confluo-info -l fields -d 'List the fields of INPUT; without INPUT those of packets.'
complete -c confluo-info -l verify -d 'Verify all checksums and the structure of MultiLogs.'
complete -c confluo-info -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-info -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-info -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-info -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-info -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-info -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-info -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-info -s h -d 'Print usage, the main options and examples.'
complete -c confluo-info -l help -d 'Print the help.'
complete -c confluo-info -l version -d 'Print the version.'

# command: confluo-archive
# Completion of confluo-archive for fish.  Made by completions/update from the options of the command and head.fish.

# Whether the verbs of the command line are these.
function __confluo_at
    set -l words (commandline -opc)
    set -e words[1]
    for verb in $argv
        test "$words[1]" = "$verb"
        or return 1
        set -e words[1]
    end
end

# Words with commas between them: each one after those that are already there.
function __confluo_list
    set -l before (commandline -ct | string replace -r '^--[a-z-]+=' '' | string replace -r '[^,]*$' '')
    printf '%s\n' $before$argv
end

# What the command confluo-NAME would offer for the rest of a line `confluo NAME ...`.
function __confluo_rest
    set -l words (commandline -opc)
    set -l name $words[2]
    set -e words[1..2]
    complete -C "confluo-$name "(string join ' ' -- (string escape -- $words) (commandline -ct))
end

complete -c confluo-archive -l older-than -x -d 'Archive only rows older than TIME: 1h, 7d (all).'
complete -c confluo-archive -l to -r -F -d 'Archive: a folder, which is created, or s3://BUCKET/NAME/.'
complete -c confluo-archive -l host -x -d 'Host that captured the rows (that of the log).'
complete -c confluo-archive -l keep-log -d 'Archive; do not remove the rows from the logs.'
complete -c confluo-archive -l keep -x -d 'Keep this much of the archive: 90d,500G or either.'
complete -c confluo-archive -l delete -d 'With --keep: delete the oldest rows of logs.'
complete -c confluo-archive -l dry-run -d 'Print what would be done; do not do it.'
complete -c confluo-archive -l compact -d 'Merge the small files of archives.'
complete -c confluo-archive -l part-size -x -d '--compact: make files of up to this size (64M).'
complete -c confluo-archive -l compress -d 'Compress sealed segments of logs in place.'
complete -c confluo-archive -l codec -x -a 'none lz4 zstd snappy' -d '--compress: lz4 is faster, zstd is smaller (zstd).'
complete -c confluo-archive -s f -l fields -x -a '(__confluo_list ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number help)' -d 'Print only these fields; -NAME drops one; \'help\' lists them.'
complete -c confluo-archive -s o -l format -x -a 'table tsv csv ndjson json stream arrow parquet' -d 'Write table, tsv, csv, ndjson, json, stream, arrow or parquet.  Default: table on a terminal, otherwise stream or, of computed results, tsv.'
complete -c confluo-archive -s T -d 'Write tsv, as -o tsv.'
complete -c confluo-archive -s J -d 'Write ndjson, as -o ndjson.'
complete -c confluo-archive -s w -l output -r -F -d 'Write to FILE, atomically; - is stdout.'
complete -c confluo-archive -l force -d 'Overwrite the output file.'
complete -c confluo-archive -s n -l numeric -d 'Print numbers, not names, of protocols, flags and the like.'
complete -c confluo-archive -l no-header -d 'Omit the header line (tsv, csv, table).'
complete -c confluo-archive -s W -l wide -d 'Do not truncate the columns of tables.'
complete -c confluo-archive -l local -d 'Read times without a zone, and print tables, in local time, not UTC.'
complete -c confluo-archive -l tz -x -d 'As --local, with the time of ZONE: Europe/Berlin.'
complete -c confluo-archive -l human -d 'table: print bytes, counts and rates as 1.25 MB, 12.3 k.'
complete -c confluo-archive -l readable -l stored -d 'stream, arrow, parquet: write addresses and names as text (default of parquet), or as they are stored.'
complete -c confluo-archive -s l -l line-buffered -d 'Write each record at once.'
complete -c confluo-archive -l color -x -a 'auto always never' -d 'Use colour: auto, always or never.'
complete -c confluo-archive -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-archive -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-archive -s v -l verbose -d 'Print more messages on stderr.'
complete -c confluo-archive -l stats -d 'Print counts and times on stderr at the end.'
complete -c confluo-archive -s h -d 'Print usage, the main options and examples.'
complete -c confluo-archive -l help -d 'Print the help.'
complete -c confluo-archive -l version -d 'Print the version.'

# command: confluo-serve
# Completion of confluo-serve for fish.  Made by completions/update from the options of the command and head.fish.

# Whether the verbs of the command line are these.
function __confluo_at
    set -l words (commandline -opc)
    set -e words[1]
    for verb in $argv
        test "$words[1]" = "$verb"
        or return 1
        set -e words[1]
    end
end

# Words with commas between them: each one after those that are already there.
function __confluo_list
    set -l before (commandline -ct | string replace -r '^--[a-z-]+=' '' | string replace -r '[^,]*$' '')
    printf '%s\n' $before$argv
end

# What the command confluo-NAME would offer for the rest of a line `confluo NAME ...`.
function __confluo_rest
    set -l words (commandline -opc)
    set -l name $words[2]
    set -e words[1..2]
    complete -C "confluo-$name "(string join ' ' -- (string escape -- $words) (commandline -ct))
end

complete -c confluo-serve -l stdio -d 'Serve on standard input and output.'
complete -c confluo-serve -l root -x -a '(__fish_complete_directories)' -d 'Serve only logs inside DIR (repeatable).'
complete -c confluo-serve -l max-freeze -x -d 'Limit freezes to TIME (10s).'
complete -c confluo-serve -l read-only -d 'Answer queries; refuse freezes, changes of views, removals.'
complete -c confluo-serve -l idle -x -d 'Exit after TIME without a request.'
complete -c confluo-serve -s q -l quiet -d 'Print only errors on stderr.'
complete -c confluo-serve -s h -d 'Print usage, the main options and examples.'
complete -c confluo-serve -l help -d 'Print the help.'
complete -c confluo-serve -l version -d 'Print the version.'
complete -c confluo-serve -f

# command: confluo-config
# Completion of confluo-config for fish.  Made by completions/update from the options of the command and head.fish.

# Whether the verbs of the command line are these.
function __confluo_at
    set -l words (commandline -opc)
    set -e words[1]
    for verb in $argv
        test "$words[1]" = "$verb"
        or return 1
        set -e words[1]
    end
end

# Words with commas between them: each one after those that are already there.
function __confluo_list
    set -l before (commandline -ct | string replace -r '^--[a-z-]+=' '' | string replace -r '[^,]*$' '')
    printf '%s\n' $before$argv
end

# What the command confluo-NAME would offer for the rest of a line `confluo NAME ...`.
function __confluo_rest
    set -l words (commandline -opc)
    set -l name $words[2]
    set -e words[1..2]
    complete -C "confluo-$name "(string join ' ' -- (string escape -- $words) (commandline -ct))
end

complete -c confluo-config -l show-origin -d 'Print the origin of each setting, too.'
complete -c confluo-config -l config -r -F -d 'Read settings from FILE only.'
complete -c confluo-config -s h -d 'Print usage, the main options and examples.'
complete -c confluo-config -l help -d 'Print the help.'
complete -c confluo-config -l version -d 'Print the version.'
complete -c confluo-config -f
complete -c confluo-config -a 'format color clobber local line_buffered sync rsh remote'
