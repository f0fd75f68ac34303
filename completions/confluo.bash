# Completion of confluo commands for bash.  Made by completions/update from the options of the commands and head.bash.
# Use: . confluo.bash, or a file with the name of the command in share/bash-completion/completions.

_confluo() {
    local cur=${COMP_WORDS[COMP_CWORD]} option='' name first=1 index operand=0 word take='' before=''
    local options='' verbs='' operands=() values=''
    COMPREPLY=()
    name=${COMP_WORDS[0]##*/}
    if [[ $name == confluo ]]; then
        if ((COMP_CWORD == 1)); then
            __confluo_offer "$__confluo_commands help --help --version"
            return
        fi
        name=${COMP_WORDS[1]} first=2
        if [[ $name == help ]]; then
            __confluo_offer "$__confluo_topics"
            return
        fi
    fi
    name=${name#confluo-}
    __confluo_program "$name"
    while ((first < COMP_CWORD)) && [[ " $verbs " == *" ${COMP_WORDS[first]} "* ]]; do
        name+=" ${COMP_WORDS[first]}"
        ((first++))
        __confluo_program "$name"
    done

    # The option that takes the current word, and the number of operands before it.  bash splits words at =.
    for ((index = first; index < COMP_CWORD; index++)); do
        word=${COMP_WORDS[index]}
        if [[ $take ]]; then
            [[ $word == '=' ]] || take=''
        elif [[ $word == -- ]]; then
            operand=1000
        elif [[ $word == -?* && $operand -lt 1000 ]]; then
            [[ " $options " == *" $word= "* ]] && take=$word
        elif [[ $word != '=' && $word != ':' ]]; then
            ((operand++))
        fi
    done
    [[ $cur == '=' && $take ]] && cur=''

    if [[ $take ]]; then
        __confluo_values "$name" "$take"
        __confluo_complete "$values"
    elif [[ $cur == -* && $operand -lt 1000 ]]; then
        __confluo_offer "${options//= / }"
    elif [[ $verbs && $first == "$COMP_CWORD" ]]; then
        __confluo_offer "$verbs"
        [[ ${#COMPREPLY[@]} -gt 0 || ${#operands[@]} == 0 ]] || __confluo_complete "${operands[0]}"
    elif ((${#operands[@]})); then
        ((operand >= ${#operands[@]})) && operand=$((${#operands[@]} - 1))
        __confluo_complete "${operands[operand]}"
    fi
}

# Offer what a description says: its first word is the kind, the others are the words.
__confluo_complete() {
    case $1 in
        file) __confluo_files -f ;;
        folder) __confluo_files -d ;;
        files\ *)
            __confluo_offer "${1#* }"
            ((${#COMPREPLY[@]})) || __confluo_files -f
            ;;
        user) mapfile -t COMPREPLY < <(compgen -u -- "$cur") ;;
        interface) __confluo_offer "$(cd /sys/class/net 2>/dev/null && echo *)" ;;
        word\ *) __confluo_offer "${1#* }" ;;
        list\ *)
            [[ $cur == *,* ]] && before=${cur%,*},
            mapfile -t COMPREPLY < <(compgen -P "$before" -W "${1#* }" -- "${cur##*,}")
            compopt -o nospace 2>/dev/null
            ;;
    esac
}

__confluo_offer() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur"); }

__confluo_files() {
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen "$1" -- "$cur")
}

__confluo_commands='capture convert flows retx trace replay-record stream query top sql snapshot vote pingmesh replay monitor index topology info archive serve config'
__confluo_topics='capture convert flows retx trace replay-record stream query top sql snapshot vote pingmesh replay monitor index topology info archive serve config replay-record-run replay-record-attach stream-publish stream-unpack stream-status stream-set stream-topics stream-service stream-service-synflood stream-service-loss stream-service-tcp-rate stream-service-top stream-service-histogram vote-simulate vote-bound pingmesh-plan pingmesh-serve pingmesh-agent pingmesh-probe pingmesh-respond pingmesh-blackholes pingmesh-drops pingmesh-sla pingmesh-verdict pingmesh-simulate pingmesh-heatmap replay-diff replay-explain replay-queues replay-sample pinglist schema state multilog expr pipelines tcp telemetry'

__confluo_program() {
    options='' verbs='' operands=()
    case "$1" in
        'capture')
            options='-i= --interface= -r= --read= --netflow= --sflow= --scale-samples --bpf= --decap= --sample= --sample-packets= -c= --limit= --duration= -s= --snap= --offset --no-offset --telemetry --telemetry-clock= --digest --schema= --follow --lanes= --fanout= --ring= -p --no-promiscuous --timestamps= --immediate --wait= -Z= --user= --metrics= -D --list-interfaces -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --append --add-columns --index= --keep= --sync= --config= -q --quiet -v --verbose --stats -h --help --version '
            operands=('any')
            ;;
        'convert')
            options='--analyze= --analyze-flows= --sort-input --geo= --schema= --rename= -c= --limit= --source= --synthesize --to= --ddl -i= --input-format= --at= --partial --no-archive --follow --group= -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --append --add-columns --index= --keep= --sync= --anonymize= --anonymize-keep= --anonymize-ports --config= -q --quiet -v --verbose --stats -h --help --version '
            operands=('file')
            ;;
        'flows')
            options='-i= --interface= --packets= --bpf= --decap= --ring= -p --no-promiscuous --timestamps= --wait= --duration= -Z= --user= --max-flows= --input-format= --at= --partial --no-archive --follow --group= --idle-timeout= --active-timeout= --since= --until= -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --append --add-columns --index= --keep= --sync= --config= -q --quiet -v --verbose --stats -h --help --version '
            operands=('file')
            ;;
        'retx')
            options='--follow --all --interval= --trace= --netns= --flows= --cpu= --duration= -c= --limit= -Z= --user= -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --append --add-columns --index= --keep= --sync= --config= -q --quiet -v --verbose --stats -h --help --version '
            operands=('any')
            ;;
        'trace')
            options='--from= --follow --epoch= --healthy --rate= --burst= --topology= --bound= --t-max= --alias= --map= --map-command= --vip= --only= --allow= --flows= --tries= --timeout= -Z= --user= -i= --input-format= --since= --duration= -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --append --add-columns --index= --keep= --sync= --config= -q --quiet -v --verbose --stats -h --help --version '
            ;;
        'replay-record')
            options='-h --help --version '
            verbs='run attach'
            ;;
        'replay-record run')
            options='--netns= --bridge= --address= --gateway= --grade= --level= --source= -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --append --add-columns --index= --keep= --sync= --config= -q --quiet -v --verbose --stats -h --help --version '
            operands=('file')
            ;;
        'replay-record attach')
            options='--port= -i= --interface= --level= --source= --netns= --duration= -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --append --add-columns --index= --keep= --sync= --config= -q --quiet -v --verbose --stats -h --help --version '
            ;;
        'stream')
            options='-h --help --version '
            verbs='publish unpack status set topics service'
            ;;
        'stream publish')
            options='-r= --read= --to= --follow --create= -f= --fields= --codec= --size= --linger= -X= -c= --limit= --ddl --name= --metrics= --input-format= --at= --partial --no-archive -i= --interface= --flows= --workers= --lanes= --bpf= --decap= --fanout= --ring= -p --no-promiscuous --timestamps= --immediate --wait= --duration= -Z= --user= --config= -q --quiet -v --verbose --stats -h --help --version '
            operands=('file')
            ;;
        'stream unpack')
            options='--envelope -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --config= -q --quiet -v --verbose --stats -h --help --version '
            operands=('file')
            ;;
        'stream status')
            options='--every= -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --config= -q --quiet -v --verbose -h --help --version '
            operands=('any')
            ;;
        'stream set')
            options='--config= -q --quiet -v --verbose -h --help --version '
            operands=('file' 'any')
            ;;
        'stream topics')
            options='--group= -X= -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --config= -q --quiet -v --verbose -h --help --version '
            operands=('any')
            ;;
        'stream service')
            options='-h --help --version '
            verbs='synflood loss tcp-rate top histogram'
            ;;
        'stream service synflood')
            options='--threshold= --ratio= --clear= --timeout= --from= --lateness= --to= --ddl -X= --follow --name= --metrics= -i= --input-format= --at= --partial --no-archive --since= --until= -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --append --add-columns --config= -q --quiet -v --verbose --stats -h --help --version '
            operands=('file')
            ;;
        'stream service loss')
            options='--window= --packets --points= --offset= --timeout= --all --from= --lateness= --to= --ddl -X= -i= --input-format= --at= --partial --no-archive --since= --until= -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --append --add-columns --config= -q --quiet -v --verbose --stats -h --help --version '
            operands=('file')
            ;;
        'stream service tcp-rate')
            options='--window= --from= --lateness= --to= --ddl -X= --follow --name= --metrics= -i= --input-format= --at= --partial --no-archive --since= --until= -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --append --add-columns --config= -q --quiet -v --verbose --stats -h --help --version '
            operands=('file')
            ;;
        'stream service top')
            options='--by= --top= --window= --rank= --from= --lateness= --to= --ddl -X= --follow --name= --metrics= -i= --input-format= --at= --partial --no-archive --since= --until= -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --append --add-columns --config= -q --quiet -v --verbose --stats -h --help --version '
            operands=('file')
            ;;
        'stream service histogram')
            options='--field= --bins= --window= --from= --lateness= --to= --ddl -X= --follow --name= --metrics= -i= --input-format= --at= --partial --no-archive --since= --until= -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --append --add-columns --config= -q --quiet -v --verbose --stats -h --help --version '
            operands=('file')
            ;;
        'query')
            options='-r= --read= -e= --expr= -F= --expr-file= --analyze= --analyze-flows= --sort-input --state= --geo= --dedup= --unnest= -c= --limit= --count --sample= --agg= --by= --fill --having= --sort= --top= --memory-limit= --engine= --explain --source= --synthesize --schema= -i= --input-format= --at= --partial --no-archive --follow --group= --last= --cursor= --lag= --flows --packets= --idle-timeout= --active-timeout= --since= --until= -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --append --add-columns --anonymize= --anonymize-keep= --anonymize-ports --config= -q --quiet -v --verbose --stats -h --help --version '
            operands=('file')
            ;;
        'top')
            options='-r= --read= -e= --expr= -i= --interface= --by= --agg= --sort= --window= --every= -n= --updates= --once --top= --bpf= --decap= --ring= -p --no-promiscuous -Z= --user= --input-format= --partial --no-archive -f= --fields= -o= --format= -T -J -w= --output= --force --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --config= -q --quiet -v --verbose -h --help --version '
            operands=('file')
            ;;
        'sql')
            options='--at= --unsafe --geo= --memory-limit= --threads= -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --config= -q --quiet -v --verbose -h --help --version '
            operands=('any')
            ;;
        'snapshot')
            options='-w= --output= --force --partial --deadline= --wait= --config= -q --quiet -v --verbose --stats -h --help --version '
            operands=('file')
            ;;
        'vote')
            options='--model= --by= --epoch= --follow --lateness= --topology= --alias= --adjust= --total= --threshold= --floor= --noise= --literal --healthy= --p-bad= --p-good= --prior= --ratio= --time-limit= --flows --score --top= --engine= -i= --input-format= --at= --partial --no-archive -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --config= -q --quiet -v --verbose --stats -h --help --version '
            verbs='simulate bound'
            operands=('file')
            ;;
        'vote simulate')
            options='--pods= --tors= --t1s= --t2s= --hosts= --topology= --write-topology= --failures= --where= --devices= --fail= --rate= --noise= --connections= --packets= --sizes= --traffic= --hot-tors= --skew= --epochs= --epoch= --start= --healthy= --cap= --silence= --deaths --holes= --quirks= --seed= -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --append --add-columns --config= -q --quiet -v --verbose --stats -h --help --version '
            ;;
        'vote bound')
            options='--topology= --pods= --tors= --t1s= --t2s= --hosts= --t-max= --failures= --bad= --good= --packets= --connections= -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --config= -q --quiet -v --verbose -h --help --version '
            ;;
        'pingmesh')
            options='-h --help --version '
            verbs='plan serve agent probe respond blackholes drops sla verdict simulate heatmap'
            ;;
        'pingmesh plan')
            options='--algo= --unequal= --per-podset= --probe= --interval= --timeout= --max-peers= --max-rate= --lab --token= --sign= --server= -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --config= -q --quiet -v --verbose --stats -h --help --version '
            operands=('file')
            ;;
        'pingmesh serve')
            options='--listen= --cert= --key= --client-ca= --any-name --plain --metrics= --records= --append --index= --keep= -Z= --user= --sync= --config= -q --quiet -v --verbose --stats -h --help --version '
            operands=('folder')
            ;;
        'pingmesh agent')
            options='--controller= --name= --allow= --every= --deadline= --trust= --ca= --cert= --key= --listen= --no-respond --bind= --place= --metrics= --send= --memory= --cpu= --lab --duration= -Z= --user= -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --append --add-columns --index= --keep= --sync= --config= -q --quiet -v --verbose --stats -h --help --version '
            ;;
        'pingmesh probe')
            options='-c= --count= -i= --interval= --kind= --payload= --timeout= --dscp= --source= --token= -4 -6 --counters --no-counters --insecure --lab --duration= -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --append --add-columns --config= -q --quiet -v --verbose --stats -h --help --version '
            operands=('any')
            ;;
        'pingmesh respond')
            options='--listen= --qos= --token= --backlog= --connections= --idle= --rate= --name= --every= --duration= -Z= --user= -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --append --add-columns --index= --keep= --sync= --config= -q --quiet -v --verbose --stats -h --help --version '
            ;;
        'pingmesh blackholes')
            options='-e= --expr= --where= --topology= --slice= --threshold= --group= --least= --tries= --literal --budget= --pairs --top= --engine= --window= --follow --lateness= -i= --input-format= --at= --partial --no-archive --since= --until= -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --append --add-columns --config= -q --quiet -v --verbose --stats -h --help --version '
            operands=('file')
            ;;
        'pingmesh drops')
            options='-e= --expr= --where= --topology= --above= --ratio= --lasting= --top= --flows= --all --as-sent --engine= --window= --follow --lateness= -i= --input-format= --at= --partial --no-archive --since= --until= -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --append --add-columns --config= -q --quiet -v --verbose --stats -h --help --version '
            operands=('file')
            ;;
        'pingmesh sla')
            options='--by= --as= -e= --expr= --where= --rule= --background= --false-alarm= --power= --alerts --raise= --calm= --topology= --signature= --top= --metric= --engine= --window= --follow --lateness= -i= --input-format= --at= --partial --no-archive --since= --until= -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --append --add-columns --config= -q --quiet -v --verbose --stats -h --help --version '
            operands=('file')
            ;;
        'pingmesh verdict')
            options='--service= --servers= --topology= --before= -e= --expr= --where= --rule= --false-alarm= --signature= --engine= -i= --input-format= --at= --partial --no-archive --since= --until= -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --config= -q --quiet -v --verbose --stats -h --help --version '
            operands=('file')
            ;;
        'pingmesh simulate')
            options='--topology= --dcs= --podsets= --pods= --servers= --leaves= --spines= --per-podset= --fault= --span= --start= --interval= --hosts= --noise= --payload= --classic --seed= -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --append --add-columns --config= -q --quiet -v --verbose --stats -h --help --version '
            ;;
        'pingmesh heatmap')
            options='-e= --expr= --where= --metric= --by= --dc= --window= --when= --green= --red= --topology= --patterns --no-pairs --title= --palette= --theme= --scale= --engine= -i= --input-format= --at= --partial --no-archive --since= --until= -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --config= -q --quiet -v --verbose -h --help --version '
            operands=('file')
            ;;
        'replay')
            options='--flow= --flows= --tries= --engine= --trace= --hold --as-packetdrill -i= --input-format= --at= --partial --no-archive -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --append --add-columns --config= -q --quiet -v --verbose -h --help --version '
            verbs='diff explain queues sample'
            operands=('file')
            ;;
        'replay diff')
            options='--flow= --config= -q --quiet -v --verbose -h --help --version '
            operands=('file' 'file')
            ;;
        'replay explain')
            options='--by= --slowest= --messages --flow= --flows= --gap= -i= --input-format= --at= --partial --no-archive -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --append --add-columns --config= -q --quiet -v --verbose --stats -h --help --version '
            operands=('file')
            ;;
        'replay queues')
            options='--topology= --paths= --drops= --simulate= --load= --incasts= --seed= --clock-error= --sampling-error= --picture= --score -i= --input-format= --at= --partial --no-archive -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --append --add-columns --config= -q --quiet -v --verbose --stats -h --help --version '
            operands=('file')
            ;;
        'replay sample')
            options='--by= --threshold= --gap= --expand -i= --input-format= --at= --partial --no-archive -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --append --add-columns --config= -q --quiet -v --verbose --stats -h --help --version '
            operands=('file')
            ;;
        'monitor')
            options='-t= --trigger= --triggers= --list --check --once --since= --until= --alerts= --wait= --lag= --host-wait= --catch-up= --exec= --exec-max= --metrics= --webhook= --analyze= --analyze-flows= -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --config= -q --quiet -v --verbose --stats -h --help --version '
            operands=('file')
            ;;
        'index')
            options='--filter= --where= --by= --bucket= --define= --follow --interval= --wait= --stat -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --config= -q --quiet -v --verbose --stats -h --help --version '
            operands=('file' 'files add drop list update rebuild check' 'files add drop list update rebuild check filter aggregate state ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number')
            ;;
        'topology')
            options='-w= --output= --force --config= -q --quiet -v --verbose --stats -h --help --version '
            operands=('file' 'file')
            ;;
        'info')
            options='-i= --input-format= --fields --verify -T -J --local --tz= --config= -q --quiet -v --verbose -h --help --version '
            operands=('file')
            ;;
        'archive')
            options='--older-than= --to= --host= --keep-log --keep= --delete --dry-run --compact --part-size= --compress --codec= -f= --fields= -o= --format= -T -J -w= --output= --force -n --numeric --no-header -W --wide --local --tz= --human --readable --stored -l --line-buffered --color= --config= -q --quiet -v --verbose --stats -h --help --version '
            operands=('file')
            ;;
        'serve')
            options='--stdio --root= --max-freeze= --read-only --idle= -q --quiet -h --help --version '
            ;;
        'config')
            options='--show-origin --config= -h --help --version '
            operands=('word format color clobber local line_buffered sync rsh remote')
            ;;
    esac
}

__confluo_values() {
    case "$1 $2" in
        'capture -i'|'flows -i'|'replay-record attach -i'|'stream publish -i'|'top -i') values='interface' ;;
        'pingmesh probe -i'|'pingmesh probe --source'|'pingmesh agent --allow') values='any' ;;
        'flows -f'|'flows --fields') values='list ts last_ts duration ip_version proto src_ip dst_ip src_port dst_port conn_state history reason src_packets dst_packets src_bytes dst_bytes src_payload dst_payload src_flags dst_flags syn_rtt ack_rtt src_retx dst_retx src_ooo dst_ooo src_zero_windows dst_zero_windows src_resets dst_resets vlan tunnel vni help' ;;
        'retx -f'|'retx --fields') values='list ts event notes state ip_version proto src_ip dst_ip src_port dst_port sent lost retrans dsack events timeouts rtt rtt_var rtt_min cwnd bytes cookie uid help' ;;
        'trace -f'|'trace --fields') values='list ts kind notes ip_version proto src_ip dst_ip src_port dst_port sent lost retrans dsack rtt hops path path6 src_tor dst_tor link_a link_b rate help' ;;
        'replay-record run -f'|'replay-record attach -f'|'replay -f'|'replay sample -f'|'replay-record run --fields'|'replay-record attach --fields'|'replay --fields'|'replay sample --fields') values='list ts kind notes ip_version proto src_ip dst_ip src_port dst_port cookie role count step number number_step tx tx_step rx rx_step call bytes asked flags value name text timer ip_id segments gap digest seq ack len tcp_flags window sack ecn tsval tsecr snd_una snd_nxt cwnd ssthresh srtt rcv_wnd snd_wnd ca_state gaps tx_gaps rx_gaps number_gaps sizes marks help' ;;
        'vote -f'|'vote simulate -f'|'vote bound -f'|'vote --fields'|'vote simulate --fields'|'vote bound --fields') values='list ts epoch rank verdict link_a link_b score votes flows dead carried lost sent rate confidence truth a b help' ;;
        'pingmesh plan -f'|'pingmesh agent -f'|'pingmesh probe -f'|'pingmesh respond -f'|'pingmesh blackholes -f'|'pingmesh drops -f'|'pingmesh sla -f'|'pingmesh verdict -f'|'pingmesh simulate -f'|'pingmesh heatmap -f'|'pingmesh plan --fields'|'pingmesh agent --fields'|'pingmesh probe --fields'|'pingmesh respond --fields'|'pingmesh blackholes --fields'|'pingmesh drops --fields'|'pingmesh sla --fields'|'pingmesh verdict --fields'|'pingmesh simulate --fields'|'pingmesh heatmap --fields') values='list ts kind level outcome notes ip_version proto src_ip dst_ip src_port dst_port dscp seq payload retries hint rtt elapsed echo dns tls first_byte remote status errno list src dst src_pod dst_pod src_podset dst_podset src_dc dst_dc event reason peers probes skipped overflows listen_drops syn_retrans rss cpu fault rate detail help' ;;
        'replay explain -f'|'replay explain --fields') values='list ts event name label why cause certainty missing ip_version proto src_ip dst_ip src_port dst_port duration trigger n seq len packet previous_packet trigger_packet flight window rtt age message flow help' ;;
        'replay queues -f'|'replay queues --fields') values='list ts seen delay reordered ip_version proto src_ip dst_ip src_port dst_port ip_id tcp_seq payload_len help' ;;
        'monitor -f'|'monitor --fields') values='list ts trigger event value threshold rows window lasted key ip_version proto src_ip dst_ip src_port dst_port values condition key_id host severity labels text help' ;;
        'capture -o'|'convert -o'|'capture --format'|'convert --format') values='word table tsv csv ndjson json stream arrow parquet pcap pcapng multilog' ;;
        'stream unpack -o'|'stream status -o'|'stream topics -o'|'top -o'|'sql -o'|'vote -o'|'vote bound -o'|'pingmesh verdict -o'|'monitor -o'|'index -o'|'archive -o'|'stream unpack --format'|'stream status --format'|'stream topics --format'|'top --format'|'sql --format'|'vote --format'|'vote bound --format'|'pingmesh verdict --format'|'monitor --format'|'index --format'|'archive --format') values='word table tsv csv ndjson json stream arrow parquet' ;;
        'query -o'|'query --format') values='word table tsv csv ndjson json stream arrow parquet pcap pcapng multilog svg html spark' ;;
        'pingmesh plan -o'|'pingmesh plan --format') values='word yaml table tsv csv ndjson json stream arrow parquet' ;;
        'pingmesh probe -o'|'pingmesh probe --format') values='word lines table tsv csv ndjson json stream arrow parquet multilog' ;;
        'pingmesh heatmap -o'|'pingmesh heatmap --format') values='word svg html png table tsv csv ndjson json stream arrow parquet' ;;
        'replay -o'|'replay --format') values='word table tsv csv ndjson json stream arrow parquet pcap multilog' ;;
        'replay explain -o'|'replay explain --format') values='word svg html table tsv csv ndjson json stream arrow parquet multilog' ;;
        'capture --index'|'convert --index') values='list ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number' ;;
        'flows --index') values='list ts last_ts duration ip_version proto src_ip dst_ip src_port dst_port conn_state history reason src_packets dst_packets src_bytes dst_bytes src_payload dst_payload src_flags dst_flags syn_rtt ack_rtt src_retx dst_retx src_ooo dst_ooo src_zero_windows dst_zero_windows src_resets dst_resets vlan tunnel vni' ;;
        'retx --index') values='list ts event notes state ip_version proto src_ip dst_ip src_port dst_port sent lost retrans dsack events timeouts rtt rtt_var rtt_min cwnd bytes cookie uid' ;;
        'trace --index') values='list ts kind notes ip_version proto src_ip dst_ip src_port dst_port sent lost retrans dsack rtt hops path path6 src_tor dst_tor link_a link_b rate' ;;
        'replay-record run --index'|'replay-record attach --index'|'replay sample --by') values='list ts kind notes ip_version proto src_ip dst_ip src_port dst_port cookie role count step number number_step tx tx_step rx rx_step call bytes asked flags value name text timer ip_id segments gap digest seq ack len tcp_flags window sack ecn tsval tsecr snd_una snd_nxt cwnd ssthresh srtt rcv_wnd snd_wnd ca_state gaps tx_gaps rx_gaps number_gaps sizes marks' ;;
        'replay-record run --source'|'replay-record attach --source') values='word tracefs bpf' ;;
        'replay --trace') values='list tcp_probe cong_state retransmit' ;;
        'stream publish --flows'|'replay --flows'|'replay explain --flows') values='file' ;;
        'vote --by') values='word link switch' ;;
        'pingmesh sla --by') values='word all server pod podset dc service' ;;
        'pingmesh heatmap --by') values='word pod podset server dc' ;;
        'replay explain --by') values='word cause size' ;;
        'replay --engine') values='word serial decoupled naive' ;;
        'vote simulate --healthy') values='word none bare path' ;;
        'vote simulate --where') values='list fabric all tor-t1 t1-t2' ;;
        'pingmesh heatmap --metric') values='word p50 p99 drop' ;;
        *' -i'|*' --input-format') values='word tsv csv ndjson json stream arrow parquet pcap pcapng flock tshark multilog' ;;
        *' --interface') values='interface' ;;
        *' -r'|*' --read'|*' -w'|*' --output'|*' --config'|*' --geo'|*' --source'|*' --to'|*' --at'|*' --anonymize'|*' --from'|*' --topology'|*' --alias'|*' --map'|*' -F'|*' --expr-file'|*' --cursor'|*' --write-topology'|*' --sign'|*' --cert'|*' --key'|*' --client-ca'|*' --records'|*' --trust'|*' --ca'|*' --paths'|*' --picture'|*' --triggers') values='file' ;;
        *' --decap') values='word outer inner' ;;
        *' --telemetry-clock') values='word us ns' ;;
        *' --schema') values='files alert blackhole cause conn drop envelope explanation header64 histogram loss message netflow packet passage path probe queue recording retx score stage tcp_rate topic vote' ;;
        *' --fanout') values='word hash cpu rr' ;;
        *' --timestamps') values='word host hardware' ;;
        *' -Z'|*' --user') values='user' ;;
        *' -f'|*' --fields') values='list ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number help' ;;
        *' -o'|*' --format') values='word table tsv csv ndjson json stream arrow parquet multilog' ;;
        *' --color'|*' --trace') values='word auto always never' ;;
        *' --index') values='list ts kind level outcome notes ip_version proto src_ip dst_ip src_port dst_port dscp seq payload retries hint rtt elapsed echo dns tls first_byte remote status errno list src dst src_pod dst_pod src_podset dst_podset src_dc dst_dc event reason peers probes skipped overflows listen_drops syn_retrans rss cpu fault rate detail' ;;
        *' --sync') values='word none seal batch' ;;
        *' --analyze') values='word tcp maxseq' ;;
        *' --bound') values='word full paper' ;;
        *' --allow') values='word loopback broadcast multicast foreign' ;;
        *' --grade') values='word strict default' ;;
        *' --level') values='word signals headers' ;;
        *' --codec') values='word none lz4 zstd snappy' ;;
        *' --by'|*' --field'|*' --unnest'|*' --sort') values='list ts len cap_len payload_len ip_version proto src_ip dst_ip src_port dst_port ip_len ttl dscp ecn ip_id ip_flags frag_offset tcp_seq tcp_ack tcp_flags tcp_window tcp_opts tcp_mss tcp_wscale tcp_tsval tcp_tsecr icmp_type icmp_code eth_src eth_dst eth_type vlan vlan2 vlan_count mpls_label mpls_count tunnel vni link_type iface notes flow_hash tcp_sack switch_path queue_depth hop_time hop_latency file_offset file_number' ;;
        *' --rank') values='word bytes packets' ;;
        *' --state'|*' --define') values='files maxseq' ;;
        *' --agg') values='list count sum avg min max stddev first last distinct distinct~ rate mean median' ;;
        *' --engine') values='word local dask:// spark://' ;;
        *' --model') values='word vote mle cover milp-binary milp-integer help' ;;
        *' --adjust') values='word flows ecmp none' ;;
        *' --total') values='word running initial' ;;
        *' --healthy') values='word path ecmp none' ;;
        *' --sizes') values='word uniform pareto' ;;
        *' --traffic') values='word uniform skewed hot' ;;
        *' --holes') values='word pairs flows none' ;;
        *' --quirks') values='list last-hop two-draws culprit all' ;;
        *' --unequal') values='word wrap skip' ;;
        *' --controller'|*' --root') values='folder' ;;
        *' --kind') values='word tcp echo http https udp icmp' ;;
        *' --dscp') values='word cs1 ef' ;;
        *' --as') values='word source target' ;;
        *' --signature') values='word linux linux-classic windows' ;;
        *' --metric') values='word drop failed p50 p99 p999' ;;
        *' --palette') values='word paper safe' ;;
        *' --theme') values='word light dark auto' ;;
        *' --drops') values='word recorded buffer' ;;
        *' --alerts') values='files none' ;;
    esac
}

complete -F _confluo confluo confluo-capture confluo-convert confluo-flows confluo-retx confluo-trace confluo-replay-record confluo-stream confluo-query confluo-top confluo-sql confluo-snapshot confluo-vote confluo-pingmesh confluo-replay confluo-monitor confluo-index confluo-topology confluo-info confluo-archive confluo-serve confluo-config
