# What `gpulease shell` and `gpulease simulate` have bash read: the user's file, then a mark before the prompt.
[ -r ~/.bashrc ] && . ~/.bashrc
_gpulease_prompt() {  # each time, since many prompts are made anew for each command
    local code=$?
    case $PS1 in "$GPULEASE_PROMPT"*) ;; *) PS1=$GPULEASE_PROMPT$PS1 ;; esac
    return $code
}
case $(declare -p PROMPT_COMMAND 2>/dev/null) in
    "declare -a"*) PROMPT_COMMAND+=(_gpulease_prompt) ;;
    *) PROMPT_COMMAND="${PROMPT_COMMAND:+$PROMPT_COMMAND$'\n'}_gpulease_prompt" ;; # an array needs bash 5.1
esac
