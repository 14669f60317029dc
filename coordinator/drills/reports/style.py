"""How the page looks, and the little script that shows the time under the pointer. Colours are those of Okabe and Ito,
which people who are colour-blind tell apart; what is wrong is vermilion, and no consumer is."""

CSS = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1a1d21;--soft:#5c6570;--line:#d9dde2;--faint:#f3f5f7;
--alarm:#b84a00;--alarm-wash:rgba(213,94,0,.09);--good:#00674b;--unsure:#6b5300;
--k0:#0072b2;--k1:#c98700;--k2:#009e73;--k3:#b85f92;--k4:#3a9fd6}
@media (prefers-color-scheme:dark){:root{--paper:#14171a;--ink:#e8eaed;--soft:#9aa4af;--line:#333a42;--faint:#1d2126;
--alarm:#ff8a47;--alarm-wash:rgba(255,138,71,.11);--good:#3fcf9f;--unsure:#e6c35c;
--k0:#5fb2ec;--k1:#e69f00;--k2:#2fbf93;--k3:#df94be;--k4:#8ad0f7}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Noto Sans",
"Liberation Sans",sans-serif;-webkit-text-size-adjust:100%;font-variant-numeric:tabular-nums}
main{max-width:1216px;margin:0 auto;padding:28px 32px 64px}
h1{font-size:26px;line-height:1.25;margin:0;font-weight:650;letter-spacing:-.01em}
h2{font-size:17px;margin:44px 0 10px;font-weight:650;padding-top:14px;border-top:1px solid var(--line)}
h3{font-size:14px;margin:20px 0 6px;font-weight:600}
p{margin:0 0 8px;max-width:80ch}
code,pre{font:12.5px/1.5 ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono","Liberation Mono",monospace}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:0}
.head{display:grid;grid-template-columns:auto 1fr;gap:4px 28px;align-items:center}
.verdict{display:flex;align-items:center;gap:12px;font-size:34px;font-weight:750;letter-spacing:.02em;line-height:1}
.verdict svg{width:52px;height:52px;flex:none}
.PASS{color:var(--good)}.FAIL{color:var(--alarm)}.INCONCLUSIVE{color:var(--unsure)}
.verdict .shape{fill:currentColor}.INCONCLUSIVE .shape{fill:none;stroke:currentColor;stroke-width:3;
stroke-dasharray:5 3}
.verdict .sign{fill:none;stroke:var(--paper);stroke-width:5;stroke-linecap:round;stroke-linejoin:round}
.INCONCLUSIVE .sign{stroke:currentColor;stroke-width:4}
.when{color:var(--soft);margin:2px 0 0;font-size:14px}
.told{font-size:18px;line-height:1.5;margin:20px 0 0;max-width:74ch}
.why{margin:14px 0 0;padding:0 0 0 14px;border-left:4px solid currentColor;max-width:80ch;list-style:none}
.why li{color:var(--ink);margin:2px 0}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(190px,1fr));gap:1px;margin:24px 0 0;
background:var(--line);
border:1px solid var(--line);border-radius:6px;overflow:hidden}
.figures div{background:var(--paper);padding:12px 16px}
.figures dt{color:var(--soft);font-size:13px}.figures dd{margin:0;font-size:24px;font-weight:620;line-height:1.3}
.figures small{display:block;color:var(--soft);font-size:13px;font-weight:400}
.missing{color:var(--soft);font-style:italic}
table{border-collapse:collapse;width:100%;font-size:14px}
th{text-align:left;font-weight:600;color:var(--soft);font-size:13px;padding:4px 16px 4px 0;
border-bottom:1px solid var(--line);
vertical-align:bottom}
td{padding:6px 16px 6px 0;border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:break-word}
th.n,td.n{text-align:right;white-space:nowrap}
td.o{white-space:nowrap;font-weight:600}.held{color:var(--good)}.broken{color:var(--alarm)}.open{color:var(--soft)}
.wide{overflow-x:auto}
.two{display:grid;grid-template-columns:1fr 1fr;gap:0 48px}
.two>*{min-width:0}
.pairs td:first-child{color:var(--soft);width:34%}.pairs td.n{width:34%}.pairs tr:has(td.n) td:first-child{width:66%}
details{margin:14px 0 0}summary{cursor:pointer;color:var(--soft);font-size:14px}
.witness{margin:6px 0 4px;background:var(--faint);border-left:3px solid var(--alarm);padding:8px 12px}
.witness td{border:0;padding:2px 14px 2px 0;font-size:13px;white-space:nowrap}
.witness td:last-child{white-space:normal;width:100%}.held-by{min-width:620px}
.witness td:last-child{padding-right:0}.witness .n{text-align:right}
.legend{display:flex;flex-wrap:wrap;gap:4px 20px;color:var(--soft);font-size:13px;margin:10px 0 0;padding:0;
list-style:none}
.legend svg{width:26px;height:14px;vertical-align:-2px;margin-right:6px}
.chart{display:flex;overflow-x:auto;margin:12px 0 0;position:relative;outline-offset:3px}
.chart.small{margin:18px 0 0}.chart.small .lanes{flex:0 1 980px;width:0;min-width:0}
.chart svg{flex:none;display:block}
.names{position:sticky;left:0;background:var(--paper);z-index:1}
.defs{position:absolute}
svg text{font:11px system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","Liberation Sans",sans-serif;fill:var(--ink);
font-variant-numeric:tabular-nums}
svg .name{font-size:12px}svg .heading{font-size:12px;font-weight:650}svg .low{font-size:9px}
svg .lower{font-size:10.5px}
svg .soft,svg .tick{fill:var(--soft)}svg .alarm{fill:var(--alarm);font-weight:600}
svg .on{fill:var(--paper);font-weight:600}svg .mid{text-anchor:middle}svg .end{text-anchor:end}
svg .halo,svg .in{paint-order:stroke;stroke:var(--paper);stroke-width:3px;stroke-linejoin:round}
svg .in{stroke-opacity:.75}
svg .called{font-weight:500}
svg text{pointer-events:none}
.k0{--k:var(--k0)}.k1{--k:var(--k1)}.k2{--k:var(--k2)}.k3{--k:var(--k3)}.k4{--k:var(--k4)}
.base{fill:var(--k);fill-opacity:.26}.texture{stroke:var(--k);stroke-width:1.2;stroke-opacity:.45;fill:none}
rect.fetch{stroke:var(--k);stroke-width:1}.begins{fill:var(--k)}
rect.life{stroke:var(--k,var(--soft));stroke-width:1}rect.life:not([fill]){fill:var(--faint)}
.elected{fill:var(--ink)}rect.lease{fill:var(--soft)}
rect.pause{stroke:var(--ink);stroke-width:1}.still{stroke:var(--ink);stroke-width:.9;stroke-opacity:.75}
.gap{fill:var(--alarm-wash)}.idle{stroke:var(--alarm);stroke-width:1.5;stroke-dasharray:4 3;pointer-events:none}
.small .gap{fill:var(--alarm);fill-opacity:.55}
.overlap{fill:none;stroke:var(--alarm);stroke-width:2.5;pointer-events:all}
.flow{fill:var(--ink);fill-opacity:.62;pointer-events:none}
.shade{fill:var(--alarm);fill-opacity:.1}.edge{stroke:var(--alarm);stroke-width:1;stroke-dasharray:6 3;opacity:.7;
pointer-events:none;fill:none}.under{fill:var(--paper);fill-opacity:.75}#paused .under{fill-opacity:1}
.grid{stroke:var(--line);fill:none;stroke-width:1;opacity:.7}.rule{stroke:var(--line);fill:none}
.moment{stroke:var(--ink);stroke-width:1;stroke-dasharray:2 3;opacity:.6;pointer-events:none}
.moment.zero{stroke:var(--alarm);stroke-width:1.8;stroke-dasharray:none;opacity:1}
.m{fill:var(--ink);stroke:var(--ink);stroke-width:1}
.m.session,.m.exit,.m.over,.m.failed{fill:none;stroke:var(--alarm);stroke-width:1.8}.m.stop{fill:var(--paper)}
.m.batch{stroke-width:1.6}.m.registered{fill:var(--paper)}
.box{vector-effect:non-scaling-stroke;fill:none;stroke:var(--ink);stroke-width:1.5}
.bar{fill:var(--k0)}.bar.late{fill:var(--alarm)}.bound{stroke:var(--ink);stroke-width:2}.rail{fill:var(--faint)}
.dim rect.fetch,.dim rect.life{opacity:.25}.dim rect.lit{opacity:1}
#time{position:fixed;pointer-events:none;background:var(--ink);color:var(--paper);font-size:12px;padding:1px 7px;
border-radius:3px;
transform:translate(-50%,-140%);display:none;white-space:nowrap;z-index:2}
@media screen and (max-width:760px){main{padding:18px 16px 48px}
.head{grid-template-columns:1fr}.two{grid-template-columns:1fr}
h1{font-size:22px}.verdict{font-size:28px}.verdict svg{width:42px;height:42px}.told{font-size:16px}}
@media print{@page{size:A4 landscape;margin:11mm}:root{--paper:#fff;--ink:#000;--soft:#444;--line:#ccc;
--faint:#f3f3f3;
--alarm:#b84a00;--alarm-wash:rgba(213,94,0,.09);--good:#00674b;--unsure:#6b5300;
--k0:#0072b2;--k1:#c98700;--k2:#009e73;--k3:#b85f92;--k4:#3a9fd6}
main{padding:0;max-width:none}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
.chart{overflow:visible;zoom:.86}.whole{display:none}h2,h3{break-after:avoid}tr,.figures,.witness{break-inside:avoid}}
"""

SCRIPT = """
(function(){var t=document.getElementById('time');
document.querySelectorAll('.chart:not(.small) svg.lanes').forEach(function(s){
s.addEventListener('mousemove',function(e){var b=s.getBoundingClientRect();
var at=+s.dataset.start+(e.clientX-b.left)/(+s.dataset.rate);
t.textContent=(at>0?'+':at<0?'\\u2212':'')+Math.abs(at).toFixed(2)+' s';
t.style.left=e.clientX+'px';t.style.top=Math.max(b.top,24)+'px';t.style.display='block'});
s.addEventListener('mouseleave',function(){t.style.display='none'})});
document.querySelectorAll('.chart:not(.small)').forEach(function(c){c.addEventListener('mouseover',function(e){
var f=e.target.getAttribute&&e.target.getAttribute('fill'),of=f&&f.indexOf('url(#t')===0?f:null;
c.classList.toggle('dim',!!of);
c.querySelectorAll('rect[fill]').forEach(function(r){r.classList.toggle('lit',!!of&&r.getAttribute('fill')===of)})});
c.addEventListener('mouseleave',function(){c.classList.remove('dim')})})})();
"""
