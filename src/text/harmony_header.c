// What the words between <|start|> and <|message|> mean:
//   ROLE[:name][ to=RECIPIENT][<|channel|>CHANNEL[ to=RECIPIENT]][ [<|constrain|>]TYPE]
#include "text/harmony.h"

enum section { ROLE_SECTION, CHANNEL_SECTION, TYPE_SECTION };

struct word {
    struct nib_text text;
    enum section section;
    bool first; // of its section
};

// Walks over the words of a header, knowing the section of each.
struct walk {
    const struct nib_chat *chat;
    struct nib_text header;
    const struct nib_mark *marks; /* [mark_count] */
    size_t mark_count, mark, at;
    enum section section;
    bool first;
};

static struct walk walk_header(const struct nib_chat_parser *parser)
{
    return (struct walk){.chat = parser->chat,
                         .header = nib_writer_text(&parser->header),
                         .marks = parser->header_marks.items,
                         .mark_count = parser->header_marks.count,
                         .first = true};
}

// Passes the marks that stand at the walk's place.
static void pass_marks(struct walk *walk)
{
    for (; walk->mark < walk->mark_count && walk->marks[walk->mark].at <= walk->at; walk->mark++) {
        int control = nib_chat_control_of(walk->chat, walk->marks[walk->mark].token);
        if (control == HARMONY_START)
            walk->section = ROLE_SECTION;
        else if (control == HARMONY_CHANNEL)
            walk->section = CHANNEL_SECTION;
        else if (control == HARMONY_CONSTRAIN)
            walk->section = TYPE_SECTION;
        else
            continue;
        walk->first = true;
    }
}

static bool next_word(struct walk *walk, struct word *word)
{
    pass_marks(walk);
    while (walk->at < walk->header.size && nib_is_space(walk->header.bytes[walk->at])) {
        walk->at++;
        pass_marks(walk);
    }
    if (walk->at == walk->header.size)
        return false;
    size_t end = walk->mark < walk->mark_count ? walk->marks[walk->mark].at : walk->header.size;
    size_t from = walk->at;
    while (walk->at < end && !nib_is_space(walk->header.bytes[walk->at]))
        walk->at++;
    *word = (struct word){{walk->header.bytes + from, walk->at - from}, walk->section, walk->first};
    walk->first = false;
    return true;
}

static struct nib_text behind(struct nib_text text, size_t count)
{
    return (struct nib_text){text.bytes + count, text.size - count};
}

// "assistant" or "user:name"; tools go by other names.
static bool read_known_role(struct nib_text word, struct nib_message *message)
{
    static const char *const names[] = {
        [NIB_ROLE_SYSTEM] = "system",
        [NIB_ROLE_DEVELOPER] = "developer",
        [NIB_ROLE_USER] = "user",
        [NIB_ROLE_ASSISTANT] = "assistant",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t size = strlen(names[i]);
        if (word.size < size || memcmp(word.bytes, names[i], size) != 0)
            continue;
        if (word.size > size && word.bytes[size] != ':')
            continue;
        message->role = (enum nib_role)i;
        message->name = word.size > size ? behind(word, size + 1) : (struct nib_text){0};
        return true;
    }
    return false;
}

static bool is_known_channel(struct nib_text word)
{
    return nib_text_equal(word, nib_text_of("analysis")) || nib_text_equal(word, nib_text_of("commentary")) ||
           nib_text_equal(word, nib_text_of("final"));
}

static bool read_recipient(const struct word *word, struct nib_message *message)
{
    if (word->text.size < 4 || memcmp(word->text.bytes, "to=", 3) != 0)
        return false;
    message->recipient = behind(word->text, 3);
    message->recipient_in_channel = word->section != ROLE_SECTION;
    return true;
}

// The role's place is free until a word has taken it or a channel has begun.
static bool read_role(const struct nib_chat_parser *parser, const struct word *word, bool strict,
                      struct nib_message *message)
{
    if (parser->role_known || word->section != ROLE_SECTION || !word->first)
        return false;
    if (read_known_role(word->text, message))
        return true;
    if (strict || !parser->written.started)
        return false;
    message->role = NIB_ROLE_TOOL;
    message->name = word->text;
    return true;
}

static bool read_channel(const struct word *word, bool strict, struct nib_message *message)
{
    bool fits = word->section == CHANNEL_SECTION && word->first && (!strict || is_known_channel(word->text));
    if (fits)
        message->channel = word->text;
    return fits;
}

static bool read_type(const struct word *word, bool strict, struct nib_message *message)
{
    bool constrained = word->section == TYPE_SECTION && word->first;
    if (message->content_type.size || (strict && !constrained && !nib_text_equal(word->text, nib_text_of("json"))))
        return false;
    message->content_type = word->text;
    return true;
}

bool nib_harmony_read_header(struct nib_chat_parser *parser, bool strict)
{
    struct nib_message *message = &parser->open;
    struct walk walk = walk_header(parser);
    bool understood = true;
    for (size_t i = 0; i < walk.mark_count; i++)
        message->constrained |= nib_chat_control_of(walk.chat, walk.marks[i].token) == HARMONY_CONSTRAIN;
    for (struct word word; next_word(&walk, &word);) {
        if (read_recipient(&word, message))
            walk.first = word.first; // it may stand before the section's own word, too
        else if (!read_role(parser, &word, strict, message) && !read_channel(&word, strict, message) &&
                 !read_type(&word, strict, message))
            understood = false;
    }
    return understood;
}

void nib_harmony_header_to_text(struct nib_chat_parser *parser)
{
    struct nib_message *message = &parser->open;
    *message = (struct nib_message){.role = NIB_ROLE_ASSISTANT};
    struct nib_text header = nib_writer_text(&parser->header);
    struct nib_writer rest = {0};
    struct walk walk = walk_header(parser);
    size_t kept = 0; // where the bytes begin that are not yet in `rest`
    for (struct word word; next_word(&walk, &word);) {
        bool role = word.section == ROLE_SECTION && word.first && !parser->role_known &&
                    read_known_role(word.text, message);
        if (!role && !read_channel(&word, true, message))
            continue;
        size_t from = (size_t)(word.text.bytes - header.bytes);
        nib_write(&rest, header.bytes + kept, from - kept);
        kept = from + word.text.size;
    }
    if (header.size > kept)
        nib_write(&rest, header.bytes + kept, header.size - kept);
    parser->failed |= rest.failed;
    parser->written.text_from_header = rest.buffer.size;
    nib_parser_begin(parser);
    nib_parser_put_text(parser, nib_writer_text(&rest));
    nib_bytes_free(&rest.buffer);
}
