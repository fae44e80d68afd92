# Read by the zsh of `gpulease shell` and `gpulease simulate`: the user's own file, then a mark before the prompt.
ZDOTDIR=$GPULEASE_ZDOTDIR
unset GPULEASE_ZDOTDIR
[[ -r $ZDOTDIR/.zshrc ]] && . "$ZDOTDIR/.zshrc"
_gpulease_prompt() { [[ $PROMPT == "$GPULEASE_PROMPT"* ]] || PROMPT=$GPULEASE_PROMPT$PROMPT }
precmd_functions+=(_gpulease_prompt)
