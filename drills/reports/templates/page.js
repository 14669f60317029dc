(function(){var t=document.getElementById('time');
document.querySelectorAll('.chart:not(.small) svg.lanes').forEach(function(s){
s.addEventListener('mousemove',function(e){var b=s.getBoundingClientRect();
var at=+s.dataset.start+(e.clientX-b.left)/(+s.dataset.rate);
t.textContent=(at>0?'+':at<0?'\u2212':'')+Math.abs(at).toFixed(2)+' s';
t.style.left=e.clientX+'px';t.style.top=Math.max(b.top,24)+'px';t.style.display='block'});
s.addEventListener('mouseleave',function(){t.style.display='none'})});
document.querySelectorAll('.chart:not(.small)').forEach(function(c){c.addEventListener('mouseover',function(e){
var f=e.target.getAttribute&&e.target.getAttribute('fill'),of=f&&f.indexOf('url(#t')===0?f:null;
c.classList.toggle('dim',!!of);
c.querySelectorAll('rect[fill]').forEach(function(r){r.classList.toggle('lit',!!of&&r.getAttribute('fill')===of)})});
c.addEventListener('mouseleave',function(){c.classList.remove('dim')})})})();
