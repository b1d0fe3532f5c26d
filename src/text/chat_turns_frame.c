// Frames of messages in formats of turns, for guides.
#include "base/error.h"
#include "text/chat_turns.h"

static int32_t token_of(const struct nib_chat *chat, enum nib_sign sign)
{
    for (size_t i = 0; i < chat->control_count; i++)
        if (chat->format->controls[i].sign == (int)sign)
            return chat->controls[i];
    return -1;
}

static bool put_thought(const struct nib_chat *chat, struct nib_message_frame *frame)
{
    int32_t think = token_of(chat, NIB_SIGN_THINK), thought = token_of(chat, NIB_SIGN_THOUGHT);
    frame->absent = think < 0 || thought < 0;
    return frame->absent ||
           (nib_pieces_put_control(&frame->begin, think) && nib_pieces_put_control(&frame->end, thought) &&
            nib_pieces_put_words(&frame->next, chat, chat->format->turns->behind_thought));
}

// Its arguments, or where they need not be JSON all that stands between the tags.
static bool put_call(const struct nib_chat *chat, const struct nib_message *call, bool bound,
                     struct nib_message_frame *frame)
{
    const struct nib_turn_grammar *grammar = chat->format->turns;
    frame->markup = grammar->markup;
    if (bound && grammar->markup)
        return grammar->put_call_head(chat, call, &frame->begin) &&
               nib_pieces_put_control(&frame->end, token_of(chat, NIB_SIGN_CALL_END));
    if (bound || !grammar->read_calls)
        return grammar->put_call_head(chat, call, &frame->begin) &&
               nib_pieces_put_words(&frame->end, chat, grammar->call_end(chat));
    return nib_pieces_put_control(&frame->begin, token_of(chat, NIB_SIGN_CALL)) &&
           nib_pieces_put_control(&frame->end, token_of(chat, NIB_SIGN_CALL_END));
}

// The answer is over behind a call and behind a text; several calls can then not be demanded at once.
nib_status nib_turns_frame(const struct nib_chat *chat, const struct nib_message *header, bool bound, bool goes_on,
                           struct nib_message_frame *frame, struct nib_error *err)
{
    (void)goes_on;
    frame->begin.joined = frame->end.joined = frame->next.joined = true;
    bool thought = nib_is_reasoning(header), call = nib_is_call(header), fine = true;
    if (call && (token_of(chat, NIB_SIGN_CALL) < 0 || token_of(chat, NIB_SIGN_CALL_END) < 0))
        return nib_fail(err, NIB_ERR_UNSUPPORTED, "this model's vocabulary lacks the tags of calls");
    if (thought)
        fine = put_thought(chat, frame);
    else if (call)
        fine = put_call(chat, header, bound, frame);
    else
        frame->absent = !nib_text_equal(header->channel, nib_text_of("final"));
    if (fine && !thought && !frame->absent)
        fine = nib_pieces_put_control(&frame->end, token_of(chat, NIB_SIGN_TURN_END));
    return fine ? NIB_OK : nib_turns_out_of_memory(chat, err);
}
