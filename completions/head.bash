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
