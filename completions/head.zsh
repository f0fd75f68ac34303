# Completion of confluo commands for zsh.  Made by completions/update from the options of the commands and head.zsh.
# Use: put this file into a folder of $fpath before compinit runs.

_confluo() {
    local curcontext=$curcontext name
    local -a options verbs
    name=${service#confluo-}
    if [[ $service == confluo ]]; then
        if (( CURRENT == 2 )); then
            _describe command _confluo_commands
            return
        fi
        name=${words[2]}
        if [[ $name == help ]]; then
            compadd -- $_confluo_topics
            return
        fi
        shift words
        (( CURRENT-- ))
    fi
    _confluo_program
    while (( CURRENT > 2 )) && [[ -n ${(M)verbs:#${words[2]}:*} ]]; do
        name+=" ${words[2]}"
        shift words
        (( CURRENT-- ))
        _confluo_program
    done
    if (( CURRENT == 2 && $#verbs )) && [[ $PREFIX != -* ]]; then
        _describe verb verbs
    fi
    (( $#options )) && _arguments -s -S : $options
}

# Words with commas between them.
_confluo_list() { _sequence compadd - "$@" }

# A file, or one of these words.
_confluo_files() {
    _alternative "words:word:($*)" 'files:file:_files'
}
