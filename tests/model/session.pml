/* mend: membership, commit, resume point, state transfer.  Promela, for Spin 6.5.  docs/protocol.md tells it in prose.
 *
 * How to run: check.sh NAME "DEFS" makes one exhaustive search; run.sh makes all of those that CI makes and prints a
 * table.  Spin tries every order of everything that Workers, Launcher and Chaos (who kills) can do, looks at every
 * assert on the way, and reports a state in which nobody can go on although not all have ended (a deadlock).
 * After a failed search "spin -t -p DEFS session.pml" in its folder prints the order of events that led there.
 *
 * How to read: one "::" line is one atomic thing that a process may do, "guard -> effect".  A d_step is not
 * interrupted; between two d_steps everybody else may do anything, dying included.
 *
 * Sizes:    B buckets, S steps, KILLS deaths, SUSP false suspicions, SPUR generations without a change of members,
 *           MAXR replacements allowed, LDIE the launcher may die.
 * Variants: OVERLAP  a bucket is updated as soon as it is reduced (else: all buckets after the last one)
 *           COPIES   partner copies of per-rank state; the last of the B buckets is the closing bucket
 *           COARSE   transitions that nobody else can observe are merged with their predecessor
 *           ZCUT     nobody reads what a fenced incarnation sends;  NOSYM, KEEP: without a reduction of the search
 * Mutants, each breaks one rule and must make the search fail (M_ = a wrong protocol, V_ = a place that must be reached):
 *   M_NOBARRIER  the next lambda does not wait for Done from all
 *   M_NOPHASE    replacements are fed before all survivors are whole
 *   M_CHUNK      State chunks of an older generation are accepted
 *   M_READY      the launcher accepts Ready of an older generation
 *   M_EARLYEXIT  a worker returns after its last step without waiting for Bye
 *   M_NOBUFSNAP  no before-image: the lambda's own buffers are not put back before a step is repeated
 *   M_NOUNDO     with OVERLAP: updated buckets are not undone
 *   M_COPYLATE   with COPIES: a rank closes its step before it holds its ward's copy
 *   M_COPYEARLY  with COPIES: an uncommitted copy overwrites the committed one
 *   M_COPYAFTERGO with COPIES: copies for a new holder are sent after Go
 *   M_RESTOREHALF with COPIES: a RESTORE that was cut short is not taken up again
 *   M_COPYDROP   with COPIES: a View drops the uncommitted copy together with the partial chunks
 *   V_BUCKET     a survivor fetches missing reduced buckets      V_RESTORE  the ladder's next rung is taken
 *   V_COPY       with COPIES: a replacement takes its per-rank state from its holder
 * Harmless on purpose, the searches pass with them: M_WIRE, M_DONE, M_DONERANK, M_REUSE (steps are deterministic, so a
 * message of an older generation carries the same bits; the code refuses it all the same, M_CHUNK shows why).
 *
 * Every message is a register written by its sender only and tagged with the sender's generation; a reader may
 * read it at any later time, also after the sender's death (= still in flight).  Launcher -> worker messages
 * are kept per generation (write once), so a slow worker can still act on an old one.
 * SIGSTOP + later wake-up = a process that is not scheduled for a while and is suspected meanwhile; the
 * interleaving semantics covers it, so only SUSPECT (remove a live incarnation) is modelled.
 * Incarnations are never recycled: process p is one incarnation, rk[p] its rank.
 *
 * Contents: ver[p,b] = version whose bits bucket b (params + slots) of p really holds; buf[p] = same for the
 * registered buffers/scalars that the user's lambda mutates.
 */
#ifndef B
#define B 2              /* buckets */
#endif
#ifndef S
#define S 2              /* steps */
#endif
#ifndef KILLS
#define KILLS 2
#endif
#ifndef SUSP
#define SUSP 1           /* false suspicions */
#endif
#ifndef SPUR
#define SPUR 0           /* generations opened with unchanged members (broken link, reduction failed half way) */
#endif
#ifndef SPURFROM
#define SPURFROM 0       /* ... and only after so many deaths (to make a search smaller) */
#endif
#ifndef MAXR
#define MAXR (KILLS+SUSP) /* replacements allowed */
#endif
#ifndef LDIE
#define LDIE 0           /* launcher may die */
#endif
#define N 3
#define P (N+MAXR)
#define MAXE (1+KILLS+SUSP+SPUR)
#define ALL ((1<<B)-1)
#define NOVER 15
#define NOPLAN 15
#define RESTORE 14
#define CK 0             /* version of the durable checkpoint */

/* What must never happen, by name; always 0, so that assert(name) fails when its place is reached. */
hidden byte survivor_needs_state_transfer, survivor_updated_bucket_not_undone, restore_although_a_member_trained,
  survivor_lacks_its_wards_copy, replacement_cannot_fetch_its_copy,
  reached_missing_bucket_fetched, reached_restore, reached_copy_fetched;

mtype:st = { Unborn, Join, Reported, Ready, Call, Reduce, Fin, Ended, Dead };
mtype:ph = { Collect, Plan, Feed, Run };

/* launcher */
byte E = 1; byte mh[(MAXE+1)*N];            /* members of generation e */
mtype:ph phase = Collect;
byte plan[MAXE+1]; bit feed[MAXE+1]; bit go[MAXE+1];
byte nx = N; byte kills, susp, spur; bit bye, stopf, ldead;
byte need; byte nhit; byte committed; byte gov[MAXE+1];           /* ghosts */
/* workers */
mtype:st st[P]; byte rk[P]; byte ep[P];
bit has[P]; byte s[P]; byte g[P]; byte ver[P*B]; byte buf[P]; bit ever[P];
/* what they sent */
byte rep_ep[P], rdy_ep[P], fin_ep[P];
byte w_ep[P], w_s[P], w_b[P];               /* contributions to the all-reduce */
byte d_ep[P], d_s[P];                       /* Done: I hold every reduced bucket of step d_s-1 */
byte o_ep[P], o_t[P]; bit o_g[P];           /* Whole: I can serve version o_t (and the reduced gradients) */

#define M(r)    mh[E*N+(r)]
#define mm(p,r) mh[ep[p]*N+(r)]
#define live(p) (st[p]!=Unborn && st[p]!=Ended && st[p]!=Dead)
#define over    (bye || stopf || ldead)
#define fenced(p) (ep[p]<E && M(rk[p])!=p)
#define VER(p,b) ver[(p)*B+(b)]

/* --- guards, with the mutations used to test the model's teeth --- */
#ifdef M_WIRE       /* contribution accepted from any generation and incarnation */
#define gotw1(p,r,b,q) (rk[q]==(r) && st[q]!=Unborn && w_s[q]==s[p] && (w_b[q]&(1<<(b))))
#define gotw(p,r,b) (gotw1(p,r,b,0)||gotw1(p,r,b,1)||gotw1(p,r,b,2)||gotw1(p,r,b,3)||gotw1(p,r,b,4))
#elif defined(M_NOBARRIER)   /* a fast rank has gone on: what it sent for this step is still in flight */
#define gotw(p,r,b) (w_ep[mm(p,r)]==ep[p] && (w_s[mm(p,r)]>s[p] || w_s[mm(p,r)]==s[p] && (w_b[mm(p,r)]&(1<<(b)))!=0))
#else
#define gotw(p,r,b) (w_ep[mm(p,r)]==ep[p] && w_s[mm(p,r)]==s[p] && (w_b[mm(p,r)]&(1<<(b)))!=0)
#endif
#ifdef ZCUT                                   /* ... or, where noted, cut: nobody can read what it sends any more */
#define free(p)     0
#else
#define free(p)     (fenced(p) && go[E])     /* nobody alive follows its generation: over-approximate what it may have received */
#endif
#define reducible(p,b) ((gotw(p,0,b) && gotw(p,1,b) && gotw(p,2,b)) || (free(p) && ownw(p,b)))
#ifdef M_DONE       /* Done accepted from an older generation */
#define gotd(p,r)   (d_s[mm(p,r)]>=s[p]+1)
#elif defined(M_DONERANK)   /* ... and from any incarnation of the rank */
#define gotd1(p,r,q) (rk[q]==(r) && st[q]!=Unborn && d_s[q]>=s[p]+1)
#define gotd(p,r)   (gotd1(p,r,0)||gotd1(p,r,1)||gotd1(p,r,2)||gotd1(p,r,3)||gotd1(p,r,4))
#else
#define gotd(p,r)   (d_ep[mm(p,r)]==ep[p] && d_s[mm(p,r)]>=s[p]+1)
#endif
#ifdef M_NOBARRIER
#define barrier(p)  (1)
#else
#define barrier(p)  ((gotd(p,0) && gotd(p,1) && gotd(p,2)) || free(p))
#endif
#ifdef M_CHUNK      /* state chunks accepted from an older generation */
#define offers(p,q) (o_ep[q]!=0)
#else
#define offers(p,q) (o_ep[q]==ep[p] && o_t[q]==plan[ep[p]])
#endif
#ifdef M_READY      /* launcher accepts Ready of an older generation */
#define isrdy(q)    (rdy_ep[q]!=0)
#else
#define isrdy(q)    (rdy_ep[q]==E)
#endif
#ifdef COPIES       /* survivors say Ready in Plan, whole, and again in Feed, when they hold their ward's copy too */
#define iswhole(q)  (o_ep[q]==E)
#else
#define iswhole(q)  isrdy(q)
#endif
#ifdef OVERLAP
#define mayupd(p,b) ((g[p]&(1<<(b)))!=0)
#else
#define mayupd(p,b) (g[p]==ALL)
#endif

#define og(p,r) (offers(p,mm(p,r)) && o_g[mm(p,r)])
#define os(p,r) (offers(p,mm(p,r)) && !o_g[mm(p,r)])

/* ranks are interchangeable: the first rank ever hit is 0, the second new one is 1 */
#ifdef NOSYM
#define symok(r) 1
#elif defined(COPIES)    /* in a ring only rotations change nothing: the second new one is the ward or the holder */
#define symok(r) (nhit>0 || (r)==0)
#else
#define symok(r) ((r)<=nhit)
#endif
#define hit(r)   HURT(r) if :: (r)==nhit -> nhit++ :: else fi

/* --- partner copies of per-rank state: what differs from rank to rank, such as a loader's position, buf in this model.
 * The holder of rank r's copy is rank r+1; r is its ward.  Copy(e, s+1, r) goes out when the lambda returns (so w_ep and
 * w_s are its registers too) and is held beside the committed one until the commit; a rank contributes its closing
 * bucket, the last of the B, only when it holds its ward's copy.  After a Plan a whole member asks its ward for a copy of
 * the target, unless it has it; Go waits for that. */
#ifdef COPIES
byte hc[P];                                  /* version of the committed copy held */
bit hp[P];                                   /* a copy of version s+1 is held as well */
bit o_c[P];                                  /* Whole: I hold my ward's copy of version o_t */
bit restoring;                               /* launcher: RESTORE was planned, and no Go came since */
byte hurt;                                   /* ghost: ranks that died and are not whole again */
#define ward(p)       mm(p,(rk[p]+N-1)%N)
#define holder(p)     mm(p,(rk[p]+1)%N)
#define HURT(r)       hurt=hurt|(1<<(r));
#define healed(p)     if :: !fenced(p) && plan[ep[p]]<RESTORE -> hurt=hurt&((1<<N)-1-(1<<rk[p])) :: else fi
#define twohurt       ((hurt&(hurt-1))!=0)
#define ownw(p,b)     ((w_b[p]&(1<<(b)))!=0)  /* no reduction without its own contribution, which waits for the copy */
#define contribute(p) w_b[p]=(mayclose(p) -> ALL : (ALL>>1))
inline commitcopy(p)  { if :: hp[p] -> hc[p]=s[p]+1; hp[p]=0 :: else fi }   /* before s[p] moves on */
inline forgetcopy(p)  { hp[p]=0; hc[p]=NOVER }
inline offercopy(p,t) { o_c[p]=(hc[p]==(t) || (hp[p] && s[p]+1==(t))) }
#define dropcopy(p)   hp[p]=0
#define unsendcopy(p) o_c[p]=0
#ifdef M_COPYEARLY
#define copyin(p)     hp[p]=1; hc[p]=s[p]+1
#else
#define copyin(p)     hp[p]=1
#endif
#ifdef M_COPYLATE                            /* awaited, but only before the commit; it stays in flight when the ward goes on */
#define mayclose(p)   1
#define maycommit(p)  hp[p]
#define copycame(p)   ((w_ep[ward(p)]==ep[p] && w_s[ward(p)]>=s[p]) || free(p))
#else
#define mayclose(p)   hp[p]
#define maycommit(p)  1
#define copycame(p)   ((w_ep[ward(p)]==ep[p] && w_s[ward(p)]==s[p]) || free(p))
#endif
#ifdef M_COPYAFTERGO                         /* Ready without it: copies are renewed after Go, before the next lambda */
byte x_ep[P];                                /* Copy(e, target, r), sent at Go */
#define ready(p)      rdy_ep[p]=ep[p]
#define mustask(p)    0
#define copydone(p)   (hc[p]==s[p])
#define checkcopy(p)  skip
#define needscopy(t)  ((t)!=CK)              /* as if the start needed none, to show what happens later */
#else
#define ready(p)      if :: o_c[p] -> rdy_ep[p]=ep[p] :: else fi
#define mustask(p)    (st[p]==Ready && o_ep[p]==ep[p] && !o_c[p])
#define copydone(p)   1
#define needscopy(t)  1
inline checkcopy(p)   { if :: o_c[p] || !ever[p] :: else -> assert(survivor_lacks_its_wards_copy) fi }  /* (e) */
#endif
/* whether rank r of generation E can get its own state of version t, from itself or else from its holder's copy; only
 * the holder's Report says so */
#define near(q,t)     (has[q] && (s[q]==(t) || s[q]+1==(t)))
#define holds(q,t)    (near(q,t) && hc[q]==s[q])
#define gone(r,t)     (needscopy(t) && !near(M(r),t) && !holds(M(((r)+1)%N),t))
#ifdef M_RESTOREHALF                         /* a new generation forgets that some have restored already */
#define lost(t)       (gone(0,t) || gone(1,t) || gone(2,t))
#else
#define lost(t)       (restoring || gone(0,t) || gone(1,t) || gone(2,t))
#endif
#else
#define HURT(r)
#define ownw(p,b)     1
#define contribute(p) w_b[p]=ALL
#define commitcopy(p) skip
#define forgetcopy(p) skip
#define offercopy(p,t) skip
#define dropcopy(p)   skip
#define unsendcopy(p) skip
#define checkcopy(p)  skip
#define ready(p)      rdy_ep[p]=ep[p]
#define maycommit(p)  1
#define copydone(p)   1
#define lost(t)       0
#endif

inline setall(p,v) { i=0; do :: i<B -> VER(p,i)=v; i++ :: else -> break od; i=0 }
inline checkall(p,v) { i=0; do :: i<B -> assert(VER(p,i)==v); i++ :: else -> break od; i=0 }
inline wipe(p) { has[p]=0; s[p]=0; g[p]=0; buf[p]=0; ever[p]=0; setall(p,0); forgetcopy(p) }   /* state-space hygiene: dead and removed */
inline unsend(p) { unsendcopy(p); rep_ep[p]=0; rdy_ep[p]=0; fin_ep[p]=0; w_ep[p]=0; w_s[p]=0; w_b[p]=0; d_ep[p]=0; d_s[p]=0; o_ep[p]=0; o_t[p]=0; o_g[p]=0; ep[p]=0 }
inline whole(p,t,gr) { o_ep[p]=ep[p]; o_t[p]=t; o_g[p]=gr; offercopy(p,t); ready(p); st[p]=Ready }

#ifdef M_EARLYEXIT
#define FIN Ended
#else
#define FIN Fin
#endif
inline commit(p) {
  commitcopy(p);
  s[p]=s[p]+1; g[p]=0;
#ifndef M_NOBARRIER
  if :: !fenced(p) && s[p]>committed -> committed=s[p] :: else fi;
#endif
  if :: s[p]==S -> st[p]=FIN; fin_ep[p]=ep[p] :: else -> st[p]=Call fi }
inline call(p) {                                                          /* the user's lambda: gradients overwritten, buffers mutated */
  checkall(p,s[p]); assert(buf[p]==s[p]);
#ifdef COPIES
  assert(hc[p]==s[p]); assert(!hp[p]);
#endif
  g[p]=0; buf[p]=s[p]+1; st[p]=Reduce; w_ep[p]=ep[p]; w_s[p]=s[p] }
inline reduced(p,b) {
  g[p]=g[p]|(1<<(b));
#ifdef OVERLAP
  assert(VER(p,b)==s[p]); VER(p,b)=s[p]+1;
#endif
  if :: g[p]==ALL -> setall(p,s[p]+1); d_ep[p]=ep[p]; d_s[p]=s[p]+1 :: else fi }

proctype Worker(byte p) {
  byte i, t;
  do
  :: d_step { (st[p]==Ended || st[p]==Dead || (st[p]==Unborn && over)) -> i=0; t=0 } -> break
  :: d_step { live(p) && (stopf || ldead) -> st[p]=Ended; wipe(p) }       /* lease on the launcher lost, or told to stop */

  /* View(e, members): leave whatever blocks, report */
  :: d_step { live(p) && ep[p]!=E ->
      if
      :: M(rk[p])!=p -> st[p]=Ended; wipe(p)                              /* fenced */
      :: else ->
          ep[p]=E; rep_ep[p]=E; st[p]=Reported;
          if
#ifndef M_REUSE
          :: !has[p] -> g[p]=0; setall(p,NOVER)                           /* partial chunks are dropped */
#endif
          :: else ->
#ifdef M_COPYDROP
              dropcopy(p)
#else
              skip
#endif
          fi
      fi }

  /* Plan(e, target): make yourself whole */
  :: d_step { st[p]==Reported && plan[ep[p]]==RESTORE ->
      setall(p,CK); s[p]=CK; g[p]=0; buf[p]=CK; has[p]=1; ever[p]=0; forgetcopy(p); whole(p,CK,0) }
  :: d_step { st[p]==Reported && has[p] && plan[ep[p]]==s[p] ->           /* down: undo what was half done */
      i=0;
      do
      :: i<B && VER(p,i)==s[p]+1 ->
#ifdef M_NOUNDO
          assert(survivor_updated_bucket_not_undone);
#endif
          assert((g[p]&(1<<i))!=0); VER(p,i)=s[p]; i++
      :: i<B && VER(p,i)!=s[p]+1 -> i++
      :: else -> break
      od; i=0;
      g[p]=0;
#ifndef M_NOBUFSNAP
      buf[p]=s[p];
#endif
      dropcopy(p);
      whole(p,s[p],0); checkcopy(p) }
  :: d_step { st[p]==Reported && has[p] && plan[ep[p]]==s[p]+1 && g[p]==ALL ->   /* up: roll forward */
      i=0; do :: i<B -> assert(VER(p,i)==s[p] || VER(p,i)==s[p]+1); VER(p,i)=s[p]+1; i++ :: else -> break od; i=0;
      assert(buf[p]==s[p]+1);
      whole(p,s[p]+1,1); checkcopy(p) }
  /* up, with the missing reduced buckets: Bucket(e, step, b) from any member that holds them */
  :: d_step { st[p]==Reported && has[p] && plan[ep[p]]<RESTORE && plan[ep[p]]==s[p]+1 && g[p]!=ALL &&
              (og(p,0) || og(p,1) || og(p,2)) ->
#ifdef V_BUCKET
      assert(reached_missing_bucket_fetched);
#endif
      i=0; do :: i<B && (g[p]&(1<<i))==0 -> g[p]=g[p]|(1<<i); break :: else -> i++ od; i=0 }
  :: d_step { st[p]==Reported && has[p] && plan[ep[p]]<RESTORE && plan[ep[p]]==s[p]+1 && g[p]!=ALL &&
              (os(p,0) || os(p,1) || os(p,2)) ->
#ifdef INPLACE
      has[p]=0; g[p]=0                                                    /* own version overwritten in place by a state transfer */
#else
      assert(survivor_needs_state_transfer)                               /* I1: a survivor never needs a state transfer */
#endif
      }
  :: d_step { st[p]==Reported && !has[p] && feed[ep[p]] && plan[ep[p]]<RESTORE && g[p]!=ALL &&
              (
#ifdef M_CHUNK
               offers(p,0) || offers(p,1) || offers(p,2) || offers(p,3) ||
#endif
               offers(p,mm(p,0)) || offers(p,mm(p,1)) || offers(p,mm(p,2))) ->                                                        /* State(e, t, chunk), from any source */
      t=plan[ep[p]];
#ifdef M_CHUNK
      if :: offers(p,0) -> t=o_t[0] :: else -> if :: offers(p,1) -> t=o_t[1] :: else -> if :: offers(p,2) -> t=o_t[2] :: else -> t=o_t[3] fi fi fi;
#endif
      i=0; do :: i<B && (g[p]&(1<<i))==0 -> VER(p,i)=t; g[p]=g[p]|(1<<i); break :: else -> i++ od; i=0; t=0 }
#ifdef COPIES
  /* ... then what only its own rank had, from the holder */
  :: d_step { st[p]==Reported && !has[p] && plan[ep[p]]<RESTORE && g[p]==ALL && offers(p,holder(p)) ->
#ifdef V_COPY
      assert(reached_copy_fetched);
#endif
      if :: o_c[holder(p)] || !needscopy(plan[ep[p]]) :: else -> assert(replacement_cannot_fetch_its_copy) fi;  /* (e) */
      s[p]=plan[ep[p]]; g[p]=0; buf[p]=s[p]; has[p]=1; whole(p,s[p],0) }
  /* ... and everybody who does not hold its ward's copy of the target asks the ward for it, before Ready */
  :: d_step { mustask(p) && o_ep[ward(p)]==ep[p] ->
      hp[p]=0; hc[p]=o_t[p]; o_c[p]=1; rdy_ep[p]=ep[p]; healed(p) }
#else
  :: d_step { st[p]==Reported && !has[p] && plan[ep[p]]<RESTORE && g[p]==ALL ->
      s[p]=plan[ep[p]]; g[p]=0; buf[p]=s[p]; has[p]=1; whole(p,s[p],0) }
#endif

  /* Go(e): every hash was equal */
  :: d_step { st[p]==Ready && go[ep[p]] ->
#ifdef COPIES
      if :: plan[ep[p]]==s[p]+1 -> commitcopy(p) :: else fi;
#endif
      if :: plan[ep[p]]==RESTORE -> s[p]=CK :: else -> s[p]=plan[ep[p]] fi;
      checkall(p,s[p]);                                                   /* (a) */
#ifdef COPIES
      assert(hc[p]==s[p] || !copydone(p));
#endif
      assert(buf[p]==s[p]); assert(gov[ep[p]]==NOVER || gov[ep[p]]==s[p]); gov[ep[p]]=s[p];
      g[p]=0; ever[p]=1;
      if :: s[p]==S -> st[p]=FIN; fin_ep[p]=ep[p] :: else -> st[p]=Call fi;
#ifdef M_COPYAFTERGO
      x_ep[p]=ep[p];
#endif
#ifdef COARSE
      if :: st[p]==Call && copydone(p) -> call(p); contribute(p) :: else fi
#endif
      }
#ifdef M_COPYAFTERGO
  :: d_step { (st[p]==Call || st[p]==FIN) && !copydone(p) && x_ep[ward(p)]==ep[p] ->
      hc[p]=s[p]; if :: st[p]==Call -> call(p); contribute(p) :: else fi }
#endif

#ifdef COARSE
  /* the training loop, with steps that no one else can observe merged into their predecessor (see the
     report): reduce a bucket [+ update it (+ Done when it was the last)]; commit [+ call the lambda + contribute] */
  :: d_step { st[p]==Reduce && (g[p]&1)==0 && reducible(p,0) -> reduced(p,0) }
  :: d_step { st[p]==Reduce && (g[p]&2)==0 && reducible(p,1) -> reduced(p,1) }
#if B>2
  :: d_step { st[p]==Reduce && (g[p]&4)==0 && reducible(p,2) -> reduced(p,2) }
#endif
  :: d_step { st[p]==Reduce && g[p]==ALL && barrier(p) && maycommit(p) -> commit(p); if :: st[p]==Call -> call(p); contribute(p) :: else fi }
#ifdef COPIES
  :: d_step { st[p]==Reduce && w_ep[p]==ep[p] && !hp[p] && copycame(p) -> copyin(p); contribute(p) }
#endif
#else
  /* the training loop */
  :: d_step { st[p]==Call ->                                              /* the user's lambda: gradients overwritten, buffers mutated */
      call(p); w_b[p]=0 }
#ifdef COPIES
  :: d_step { st[p]==Reduce && !hp[p] && copycame(p) -> copyin(p) }       /* Copy(e, s+1, ward) */
  :: d_step { st[p]==Reduce && w_b[p]!=ALL && (mayclose(p) || w_b[p]!=(ALL>>1)) ->
      w_b[p]=(w_b[p]<<1)|1 }
#else
  :: d_step { st[p]==Reduce && w_b[p]!=ALL ->                             /* contribute the next bucket */
      w_b[p]=(w_b[p]<<1)|1 }
#endif
  :: d_step { st[p]==Reduce && (g[p]&1)==0 && reducible(p,0) -> g[p]=g[p]|1 }
  :: d_step { st[p]==Reduce && (g[p]&2)==0 && reducible(p,1) -> g[p]=g[p]|2 }
#if B>2
  :: d_step { st[p]==Reduce && (g[p]&4)==0 && reducible(p,2) -> g[p]=g[p]|4 }
#endif
#ifdef OVERLAP
  :: d_step { st[p]==Reduce && mayupd(p,0) && VER(p,0)==s[p] -> VER(p,0)=s[p]+1 }
  :: d_step { st[p]==Reduce && mayupd(p,1) && VER(p,1)==s[p] -> VER(p,1)=s[p]+1 }
#if B>2
  :: d_step { st[p]==Reduce && mayupd(p,2) && VER(p,2)==s[p] -> VER(p,2)=s[p]+1 }
#endif
#else
  :: d_step { st[p]==Reduce && g[p]==ALL && VER(p,0)==s[p] -> setall(p,s[p]+1) }
#endif
  :: d_step { st[p]==Reduce && g[p]==ALL && !(d_ep[p]==ep[p] && d_s[p]==s[p]+1) -> d_ep[p]=ep[p]; d_s[p]=s[p]+1 }  /* Done(e,s) */
  :: d_step { st[p]==Reduce && g[p]==ALL && d_ep[p]==ep[p] && d_s[p]==s[p]+1 && VER(p,0)==s[p]+1 && VER(p,1)==s[p]+1 &&
#if B>2
              VER(p,2)==s[p]+1 &&
#endif
              barrier(p) && maycommit(p) ->                          /* commit: reduced gradients and undo records may go */
      commit(p) }
#endif
  :: d_step { st[p]==Fin && bye && ep[p]==E -> checkall(p,S); assert(buf[p]==S); st[p]=Ended; wipe(p) }
  od
}

inline open(r, keep) {                     /* View(E+1): rank r gets a new incarnation unless keep */
  i=0; do :: i<N -> mh[(E+1)*N+i]=mh[E*N+i]; i++ :: else -> break od; i=0;
  if
  :: keep
  :: else ->
      if :: st[M(r)]==Dead -> wipe(M(r)) :: else fi;
      mh[(E+1)*N+r]=nx; rk[nx]=r; st[nx]=Join; ep[nx]=0; setall(nx,NOVER); forgetcopy(nx); nx++
  fi;
  E++; phase=Collect }

#define DETECT(r) :: d_step { !over && st[M(r)]==Dead && nx<P -> open(r,0) } \
                  :: d_step { !over && st[M(r)]==Dead && nx==P -> stopf=1 } \
                  :: d_step { !over && susp<SUSP && live(M(r)) && symok(r) && nx<P -> susp++; hit(r); open(r,0) }

proctype Launcher() {
  byte i, q, t, h; bit any;
  do
  :: over -> break
  :: d_step { !over && phase==Collect && rep_ep[M(0)]==E && rep_ep[M(1)]==E && rep_ep[M(2)]==E ->
      t=0; any=0; h=0; need=0;                                            /* Report(e, has, s, all buckets?) of all -> Plan */
      i=0; do :: i<N -> q=M(i);
              if :: has[q] -> any=1; need=need|(1<<i); h=s[q]; if :: g[q]==ALL -> h++ :: else fi; if :: h>t -> t=h :: else fi
                 :: else fi; i++
           :: else -> break od; i=0;
      if
      :: any && !lost(t) ->
#ifdef COPIES
           assert((!has[M(0)] || near(M(0),t)) && (!has[M(1)] || near(M(1),t)) && (!has[M(2)] || near(M(2),t)));
#endif
           assert(t>=committed); plan[E]=t                           /* no committed step is lost while a holder is a member */
      :: else ->                                                          /* the ladder's next rung */
#ifdef V_RESTORE
           assert(reached_restore);                                       /* (to show that this point is reached) */
#endif
           plan[E]=RESTORE; committed=CK;
           if
           :: !ever[M(0)] && !ever[M(1)] && !ever[M(2)]                    /* I2: never while somebody who trained is still a member */
#ifdef COPIES
           :: any && (twohurt || restoring)                                /* (e) ... unless two ranks were lost at once */
#endif
           :: else -> assert(restore_although_a_member_trained)
           fi
#ifdef COPIES
           ; restoring=1
#endif
      fi;
      phase=Plan; q=0; t=0; h=0; any=0 }
  :: d_step { !over && phase==Plan &&
#ifndef M_NOPHASE
      (iswhole(M(0)) || (need&1)==0) && (iswhole(M(1)) || (need&2)==0) && (iswhole(M(2)) || (need&4)==0) &&
#endif
      1 -> feed[E]=1; phase=Feed; need=0 }                                        /* all survivors whole -> Feed */
  :: d_step { !over && phase==Feed && isrdy(M(0)) && isrdy(M(1)) && isrdy(M(2)) ->
      go[E]=1; phase=Run;
#ifdef COPIES
      restoring=0;
      if :: st[M(0)]==Dead || st[M(1)]==Dead || st[M(2)]==Dead :: else -> hurt=0 fi;
#endif
#ifndef KEEP
      i=0; do :: i<nx -> if :: (st[i]==Dead || st[i]==Ended) && M(rk[i])!=i -> unsend(i)
                            :: M(rk[i])==i -> rep_ep[i]=0; rdy_ep[i]=0; w_ep[i]=0; w_s[i]=0; w_b[i]=0; d_ep[i]=0; d_s[i]=0; o_ep[i]=0; o_t[i]=0; o_g[i]=0; unsendcopy(i)
                            :: else fi; i++ :: else -> break od; i=0;
#endif
      }
  :: d_step { !over && phase==Run && fin_ep[M(0)]==E && fin_ep[M(1)]==E && fin_ep[M(2)]==E -> bye=1 }
  DETECT(0)
  DETECT(1)
  DETECT(2)
  :: d_step { !over && spur<SPUR && (SPURFROM<=kills) -> spur++; open(0,1) }
  od
}

#define KILL(x) :: d_step { !over && kills<KILLS && live(x) && M(rk[x])==x && symok(rk[x]) -> kills++; hit(rk[x]); \
     if :: st[x]==Reported && rep_ep[x]==E && phase==Collect -> skip :: else -> wipe(x) fi; st[x]=Dead }
proctype Chaos() {
  byte i;
  end: do
  KILL(0) KILL(1) KILL(2)
#if (N+MAXR)>3
  KILL(3)
#endif
#if (N+MAXR)>4
  KILL(4)
#endif
#if (N+MAXR)>5
  KILL(5)
#endif
  :: d_step { LDIE && !over -> ldead=1 }
  od
}

init {
  byte i;
  d_step {
    i=0; do :: i<=MAXE -> plan[i]=NOPLAN; gov[i]=NOVER; i++ :: else -> break od;
    i=0; do :: i<P -> st[i]=Unborn; forgetcopy(i); i++ :: else -> break od;
    i=0; do :: i<N -> st[i]=Join; rk[i]=i; has[i]=1; mh[N+i]=i; i++ :: else -> break od; i=0
  }
  atomic {
    run Launcher(); run Chaos();
    i=0; do :: i<P -> run Worker(i); i++ :: else -> break od; i=0
  }
}
