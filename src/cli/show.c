#include "cli/show.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/messages.h"

static FILE *stream(const struct show *show)
{
    return show->reasoning ? stderr : stdout;
}

static bool hidden(const struct show *show)
{
    return show->silent || (show->reasoning && show->hide_reasoning);
}

void show_begin(struct show *show, const struct nib_message *message)
{
    show->open = true;
    show->reasoning = message_is_reasoning(message);
    show->dim = show->reasoning && isatty(STDERR_FILENO) && !getenv("NO_COLOR");
    show->last = '\n';
    if (hidden(show))
        return;
    if (show->reasoning)
        fputs(show->dim ? "\033[2m" : "reasoning: ", stderr);
    else if (message_is_call(message)) {
        fputs("call ", stdout);
        show_text(show, message->recipient);
        show_text(show, nib_text_of(" "));
    }
}

void show_text(struct show *show, struct nib_text text)
{
    if (hidden(show) || text.size == 0)
        return;
    FILE *out = stream(show);
    bool terminal = isatty(fileno(out));
    for (size_t i = 0; i < text.size; i++) {
        unsigned char byte = (unsigned char)text.bytes[i];
        if (terminal && ((byte < ' ' && byte != '\n' && byte != '\t') || byte == 0x7f))
            fputs("\xef\xbf\xbd", out);
        else
            putc(byte, out);
    }
    show->last = text.bytes[text.size - 1];
    fflush(out);
}

void show_end(struct show *show)
{
    if (!show->open)
        return;
    show->open = false;
    if (hidden(show))
        return;
    FILE *out = stream(show);
    if (show->dim)
        fputs("\033[0m", out);
    if (show->last != '\n' || show->reasoning)
        putc('\n', out);
    fflush(out);
}
