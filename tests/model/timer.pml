/* SPDX-License-Identifier: MIT */
/*
 * The deadlines of one worker (lib/run/timer.c, lib/run/wait.c, lib/run/background.c): until when each thread
 * sleeps, and which thread wakes when another one sets an earlier deadline.
 *
 * U: a thread that leads, sleeps as the leader until the earliest deadline that it saw, and leaves the role once, at
 * any time. It may be in a handler for any time. B: the background thread. S: a thread that sets DEADLINES deadlines,
 * each at any future time. -DOWN_LOOP: no B; the program's loop polls the eventfd and the timerfd and calls
 * bxi_run_once.
 *
 * Time is a counter that may advance between any two steps, so each step may take long, and a deadline may pass
 * between any two steps. role.pml checks the fences of the role: here memory is sequentially consistent, and what
 * run->lock covers is one step.
 *
 * Property. When only time can move, every deadline that has passed has been fired, unless the holder of the role is
 * in a handler (Clock). In the end no deadline is left.
 * README.md says what each control takes away.
 *
 * It stands for these functions. The numbers are checksums of their text (tests/check/model.sh):
 *     lib/run/timer.c bxi_next_timer_ns 1529509315
 *     lib/run/timer.c bxi_fire_timers 1947505756
 *     lib/run/timer.c set_until 3718320712
 *     lib/run/timer.c wake_for_first 72134548
 *     lib/run/timer.c bxi_timer_set 772283906
 *     lib/run/timer.c bxi_until_when 1155031724
 *     lib/run/timer.c bxi_timers_due 1302429288
 *     lib/run/watched.c bxi_read_loop 1897439364
 *     lib/run/background.c sleep_in_background 2769333502
 *     lib/run/background.c drive_background 2773332406
 *     lib/run/background.c run_background 2990481727
 *     lib/run/background.c bxi_run_once 1753786956
 *     lib/run/progress.c bxi_before_sleep 1067260592
 *     lib/run/wait.c sleep_as_leader 524864486
 */
#ifndef DEADLINES
#define DEADLINES 2
#endif
#ifndef LAST_TIME
#define LAST_TIME 3
#endif
#define FOREVER 9

byte now = 1;
bool set[LAST_TIME + 1];                /* the heap: is a deadline set at this time? */
#define top (set[1] -> 1 : (set[2] -> 2 : (set[3] -> 3 : FOREVER)))
byte until = FOREVER;                   /* background_until_ns */
byte timerfd = FOREVER;                 /* own_loop: when it becomes readable */

bool role;
bool in_handler;                        /* the holder of the role is */
bool told;                              /* BXI_EVENT_TIMER */
bool scan;                              /* any other event */
#define events (told || scan)
#ifdef NO_NOTE
#define knows true
#else
#define knows told
#endif

#define AWAKE 0
#define BACKGROUND 1
#define LEADER 2
byte armed = BACKGROUND;
bool eventfd[3];

byte deadlines;                         /* set so far */

/* bxi_fire_timers; used inside atomic. */
inline fire(at)
{
    fired = false;
    i = 1;
    do
    :: i <= LAST_TIME ->
        if
        :: set[i] && i <= at -> set[i] = false; fired = true
        :: else
        fi;
        i++
    :: else -> break
    od;
    i = 0
}

inline set_until(at)
{
    until = at;
#ifdef OWN_LOOP
    timerfd = at
#endif
}

/* wake_for_first: under the lock, after a change of the heap. */
inline timer_added()
{
    if
    :: top < until ->
        set_until(top);
#if !defined(OWN_LOOP) && !defined(NO_RING_ADDED)
        eventfd[BACKGROUND] = true
#endif
    :: else
    fi
}

/* bxi_until_when. One step: with the lock, and time is a step earlier. */
inline until_when(at)
{
#ifdef UNTIL_WITHOUT_LOCK
    next = top;
#endif
    atomic {
#ifndef UNTIL_WITHOUT_LOCK
    next = top;
#endif
#ifndef OWN_LOOP
    if
    :: next <= at && knows -> next = FOREVER
    :: else
    fi;
#endif
    if
    :: next != until -> set_until(next)
    :: else
    fi;
    time = 0
    }
}

/* bxi_pass: the events. Then it may be in a handler. */
inline pass()
{
    if
    :: atomic { events -> look = told; told = false; scan = false; found = true }
#ifndef NO_TIMERS_LOOK
       if
       :: look ->
            atomic { fire(now); look = false }
            atomic {
#ifdef OWN_LOOP
                set_until(top)
#else
                timer_added()
#endif
            }
       :: else
       fi
#else
       look = false
#endif
    :: atomic { !events -> skip }
    fi;
    if
    :: true
    :: handlers > 0 ->
        atomic { handlers--; in_handler = true }
        !in_handler;
        found = true
    fi
}

/* bxi_leave_role: got says whether the role was kept. */
inline leave_role(anyway)
{
    armed = BACKGROUND;
    work = events;
    next = 0;
    if
    :: work && !anyway -> got = true; armed = AWAKE
    :: else ->
        got = false;
        role = false;
        if
        :: work -> eventfd[BACKGROUND] = true
        :: else
        fi
    fi;
    work = false
}

/* bxi_take_role_or_tell: got. */
inline take_role_or_tell()
{
    do
    :: atomic {
        !role -> role = true; armed = AWAKE; got = true; break
       }
    :: atomic { role -> skip }
       if
       :: atomic { !events -> got = false; break }
       :: atomic { events -> skip }
       fi;
       if
       :: atomic { armed == AWAKE -> got = false; break }
       :: atomic { armed == LEADER -> eventfd[LEADER] = true; got = false; break }
       :: atomic { armed == BACKGROUND -> skip }
          !role || !events || armed != BACKGROUND
       fi
    od
}

#ifdef OWN_LOOP
#define loop_readable (eventfd[BACKGROUND] || timerfd <= now)
/* bxi_read_loop */
inline look_loop()
{
    atomic {
        if
        :: eventfd[BACKGROUND] -> eventfd[BACKGROUND] = false; scan = true
        :: else
        fi
    }
    atomic {
        if
        :: timerfd <= now ->
            timerfd = FOREVER;
#ifndef NO_TELL_LOOP
            told = true
#endif
        :: else
        fi
    }
}
#else
#define loop_readable false
inline look_loop() { skip }
#endif

/* A thread whose wait begins, and ends when it likes: lead, sleep_as_leader, stop_leading. */
proctype User()
{
    byte i, time, next;
    byte handlers = 1;
    bool got, found, fired, look, work;

    atomic {
        !role -> role = true; armed = AWAKE
    }
    do
    :: break
    :: true ->
        pass();
        if
        :: atomic { found -> found = false }
        :: !found ->
            atomic { time = now; fire(time) }
            if
            :: atomic { fired -> fired = false; time = 0 }
            :: else ->
                next = top;
                if
                :: atomic { next <= time -> next = 0; time = 0 }
                :: else ->
                    armed = LEADER;
                    if
                    :: events
                    :: else ->
end_sleeps:             if                  /* sleep_in_bed */
                        :: atomic { eventfd[LEADER] -> eventfd[LEADER] = false }
                        :: loop_readable -> look_loop()
                        :: now >= next
                        fi
                    fi;
                    atomic { armed = AWAKE; next = 0; time = 0 }
                fi
            fi
        fi
    od;
    do
    :: leave_role(false);
       if
       :: !got -> break
       :: got -> pass()
       fi
    od
}

#ifdef OWN_LOOP
/* The program's loop: bxi_run_once whenever the descriptor is readable. */
proctype Loop()
{
    byte i, time, next;
    byte handlers = 1;
    bool got, found, fired, look, work;

end_polls:
    do
    :: loop_readable ->
        look_loop();
        take_role_or_tell();
        if
        :: got ->
            do
            :: pass();
               if
               :: atomic { found -> found = false }
               :: else ->
                    atomic { time = now; fire(time) }
                    if
                    :: atomic { fired -> fired = false; time = 0 }
                    :: else -> break
                    fi
               fi
            od;
            until_when(0);
            leave_role(true)
        :: else
        fi
    od
}
#else
proctype Background()
{
    byte i, time, next;
    byte handlers = 0;
    bool got, found, fired, look, work;
    bool timed_out;

    do
    :: if
#ifndef NO_NOTE
       :: atomic { timed_out && top <= now -> told = true }
       :: atomic { !(timed_out && top <= now) -> skip }
#else
       :: skip
#endif
       fi;
       timed_out = false;
       take_role_or_tell();
       if
       :: got ->
            do
            :: pass();
               if
               :: atomic { found -> found = false }
               :: else ->
                    atomic { time = now; fire(time) }
                    if
                    :: atomic { fired -> fired = false; time = 0 }
                    :: else ->
                        leave_role(false);
                        if
                        :: got
                        :: !got -> break
                        fi
                    fi
               fi
            od
       :: else
       fi;
       /* sleep_in_background */
       time = now;
       until_when(time);
end_asleep:
       if
       :: atomic { eventfd[BACKGROUND] -> eventfd[BACKGROUND] = false; scan = true }
       :: atomic { now >= next -> timed_out = true }
       fi;
       next = 0
    od
}
#endif

/* Any thread, with run->lock: a call with a deadline. */
proctype Setter()
{
    byte at;

    do
    :: deadlines == DEADLINES -> break
    :: else ->
        atomic {
            if
            :: at = 2
            :: at = 3
            fi;
            set[at] = true;
            deadlines++;
            timer_added();
            at = 0
        }
    od
}

/* Time moves on when it likes. When nothing else moves, a handler ends, or it is time to look. */
proctype Clock()
{
    do
    :: now < LAST_TIME -> now++
    :: true ->
        atomic {
            timeout ->
            assert(in_handler || top > now);
            if
            :: in_handler -> in_handler = false
            :: !in_handler && now < LAST_TIME -> now++
            :: !in_handler && now == LAST_TIME -> break
            fi
        }
    od;
    assert(top == FOREVER)
}

init
{
    atomic {
        run User();
#ifdef OWN_LOOP
        run Loop();
#else
        run Background();
#endif
        run Setter();
        run Clock()
    }
}
